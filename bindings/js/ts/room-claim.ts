/** Lets a room have one participant of toolbridge at a time. */

/** Marks the rooms that are in use; by a registered symbol, since this module may be loaded twice (ESM and CommonJS). */
const USED = Symbol.for('toolbridge.used');

/** Claims a room for one participant of toolbridge. @throws Error if another one has it. */
export function claim(room: object, role: string): void {
  const used: unknown = Reflect.get(room, USED);
  if (typeof used === 'string') {
    throw new Error(`this room already has ${used}; close it before you create ${role}`);
  }
  Object.defineProperty(room, USED, { value: role, configurable: true, enumerable: false, writable: true });
}

/** Frees a room for another participant of toolbridge. */
export function release(room: object): void {
  Reflect.deleteProperty(room, USED);
}
