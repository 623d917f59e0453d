/** Values that JSON can hold. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/** An object that JSON can hold. */
export type JsonObject = { readonly [key: string]: Json };

/** Returns whether a value is an object with fields: not `null`, and not a list. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/**
 * Writes a value as JSON text. Fields that are `undefined` are left out, and `toJSON` is used, as in `JSON.stringify`.
 *
 * Unlike `JSON.stringify` it refuses what JSON cannot hold, or would silently become something else: `NaN` and infinities,
 * invalid dates, `undefined` in lists, functions, symbols, big integers, bytes, cycles, promises, errors, and objects of other
 * classes that have neither `toJSON` nor fields, such as a `Response` or a `Map`.
 *
 * @throws TypeError that names the place in `what`.
 */
export function toJsonText(value: unknown, what: string): string {
  const places = new Map<object, string>();
  const refuse = (place: string, found: string): never => {
    throw new TypeError(`${place} is ${found}, which JSON cannot hold`);
  };
  // `this` is the object that holds the value, with its original value: `toJSON` has been applied to `item` only.
  function check(this: object, key: string, item: unknown): unknown {
    const holder = places.get(this);
    const place = holder === undefined ? what : Array.isArray(this) ? `${holder}[${key}]` : `${holder}.${key}`;
    const original: unknown = (this as Record<string, unknown>)[key];
    if (original instanceof Date && Number.isNaN(original.getTime())) refuse(place, 'an invalid date');
    if (ArrayBuffer.isView(original)) refuse(place, 'binary data'); // a `Buffer` has `toJSON`
    switch (typeof item) {
      case 'number':
        if (!Number.isFinite(item)) refuse(place, String(item));
        break;
      case 'bigint':
        refuse(place, 'a BigInt');
        break;
      case 'function':
      case 'symbol':
        refuse(place, `a ${typeof item}`);
        break;
      case 'undefined':
        if (holder === undefined || Array.isArray(this)) refuse(place, 'undefined');
        break;
      case 'object':
        if (item === null) break;
        if (item instanceof ArrayBuffer) refuse(place, 'binary data');
        if (item instanceof Number && !Number.isFinite(item.valueOf())) refuse(place, String(item));
        if (!Array.isArray(item)) checkClass(item, (found) => refuse(place, found));
        places.set(item, place);
        break;
    }
    return item;
  }
  const text = JSON.stringify(value, check);
  return text;
}

/** Refuses an object of which `JSON.stringify` would write nothing: it keeps its data where JSON does not see it. */
function checkClass(item: object, refuse: (found: string) => never): void {
  if (typeof (item as { then?: unknown }).then === 'function') refuse('a promise (await it)');
  if (item instanceof Error) refuse(`an error, ${item.name} (throw it, or return its message)`);
  const prototype: unknown = Object.getPrototypeOf(item);
  // Also the plain objects of other frames, whose prototypes are others.
  const isPlain = prototype === null || Object.getPrototypeOf(prototype) === null;
  const isBox = item instanceof Boolean || item instanceof Number || item instanceof String;
  if (isPlain || isBox || Object.keys(item).length > 0) return;
  const { name } = item.constructor;
  refuse(name === '' ? 'an object of a class without fields' : `an object of the class ${name}`);
}

/** Writes an object of plain fields, to which `raw` adds fields whose values are JSON texts already. */
export function joinJson(fields: object, raw: Readonly<Record<string, string>>): string {
  let text = JSON.stringify(fields).slice(0, -1);
  for (const [name, value] of Object.entries(raw)) {
    text += `${text.length > 1 ? ',' : ''}${JSON.stringify(name)}:${value}`;
  }
  return `${text}}`;
}
