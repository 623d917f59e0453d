import { isObject, type JsonObject } from './json.js';

/** The part of Standard Schema 1.1.0 that is used: a schema that validates, and describes itself as JSON Schema. */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly '~standard': {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => StandardResult<Output> | Promise<StandardResult<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
    readonly jsonSchema?: {
      readonly input: (options: { readonly target: 'draft-2020-12' }) => Record<string, unknown>;
    };
  };
}

export type StandardResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly StandardIssue[] };

export interface StandardIssue {
  readonly message: string;
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined;
}

/** The type of the arguments that `execute` gets from a schema. */
export type OutputOf<Schema> = Schema extends { readonly '~standard': { readonly types?: infer Types } }
  ? NonNullable<Types> extends { readonly output: infer Output }
    ? Output
    : unknown
  : JsonObject;

/** Checks arguments, and returns them as the schema changes them (defaults, for example). Throws an `Invalid`. */
export type Check = (value: unknown) => unknown;

/** Arguments that do not match their schema. */
export class Invalid extends Error {}

/** What a tool's `parameters` say. */
export interface Parameters {
  readonly schema: JsonObject;
  /** Without it, the arguments are not checked. */
  readonly check?: (value: unknown) => Promise<unknown>;
}

/** What to do about a schema without JSON Schema, by its vendor. */
const HINTS = new Map([
  ['zod', 'use zod 4.2 or later'],
  ['valibot', 'wrap it with toStandardJsonSchema of @valibot/to-json-schema'],
  ['arktype', 'use arktype 2.1.28 or later'],
]);

/** The JSON Schemas of schemas, which do not change: a page makes its tools anew at each rendering, and most schemas once. */
const DESCRIBED = new WeakMap<object, Record<string, unknown>>();

/** Schemas that are callable, as ArkType's are, are functions. */
function standard(value: unknown): StandardSchema['~standard'] | undefined {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null || !('~standard' in value)) return undefined;
  const found = value['~standard'];
  return isObject(found) ? (found as unknown as StandardSchema['~standard']) : undefined;
}

/**
 * Reads the parameters of a tool: a Standard Schema with JSON Schema, or a plain JSON Schema.
 *
 * @throws TypeError that names the tool, if it is neither, or not a schema of an object.
 */
export function readParameters(tool: string, parameters: unknown, validate?: (value: JsonObject) => unknown): Parameters {
  if (parameters === undefined) return { schema: { type: 'object' }, ...plainCheck(validate) };
  const found = standard(parameters);
  if (found === undefined) {
    if (isZod3(parameters)) {
      throw new TypeError(`tool "${tool}": this schema has no JSON Schema; use zod 4.2 or later, or pass a plain JSON Schema`);
    }
    if (!isObject(parameters)) {
      throw new TypeError(`tool "${tool}": parameters must be a Standard Schema with JSON Schema, or a plain JSON Schema`);
    }
    return { schema: objectSchema(tool, parameters), ...plainCheck(validate) };
  }
  const { vendor, jsonSchema } = found;
  if (typeof jsonSchema?.input !== 'function') {
    const hint = HINTS.get(vendor) ?? 'use a version of its library that has ~standard.jsonSchema';
    throw new TypeError(`tool "${tool}": this schema of ${vendor} has no JSON Schema; ${hint}, or pass a plain JSON Schema`);
  }
  let described = DESCRIBED.get(parameters as object);
  try {
    described ??= jsonSchema.input({ target: 'draft-2020-12' });
    DESCRIBED.set(parameters as object, described);
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    throw new TypeError(`tool "${tool}": the schema cannot be written as JSON Schema: ${text}`, { cause: error });
  }
  return {
    schema: objectSchema(tool, described),
    check: async (value) => {
      const result = await found.validate(value);
      if (result.issues) throw new Invalid(describeIssues(result.issues));
      return result.value;
    },
  };
}

function plainCheck(validate: ((value: JsonObject) => unknown) | undefined): { check?: (value: unknown) => Promise<unknown> } {
  if (validate === undefined) return {};
  return {
    check: async (value) => {
      let found: unknown;
      try {
        found = await validate(value as JsonObject);
      } catch (error) {
        throw new Invalid(error instanceof Error ? error.message : String(error));
      }
      if (found === false) throw new Invalid('the arguments do not match the schema');
      if (typeof found === 'string') throw new Invalid(found);
      return value;
    },
  };
}

function isZod3(value: unknown): boolean {
  return isObject(value) && typeof value['safeParse'] === 'function' && '_def' in value;
}

function objectSchema(tool: string, schema: Record<string, unknown>): JsonObject {
  if (schema['type'] !== 'object') {
    const found = typeof schema['type'] === 'string' ? `of type "${schema['type']}"` : 'without "type": "object"';
    throw new TypeError(`tool "${tool}": parameters must describe an object, but the schema is ${found}`);
  }
  return schema as JsonObject;
}

/** At most this many issues are described. */
const MAX_ISSUES = 8;

function describeIssues(issues: readonly StandardIssue[]): string {
  const texts = issues.slice(0, MAX_ISSUES).map(({ message, path }) => {
    const keys = (path ?? []).map((part) => String(typeof part === 'object' ? part.key : part));
    return keys.length === 0 ? message : `${keys.join('.')}: ${message}`;
  });
  if (issues.length > MAX_ISSUES) texts.push(`${issues.length - MAX_ISSUES} more`);
  return texts.join('; ');
}
