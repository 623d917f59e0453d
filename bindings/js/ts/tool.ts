import type { BargeIn, Consent, CoreTool, Disclose, ProgressStatus } from './core.js';
import type { Json, JsonObject } from './json.js';
import { checkToolOptions } from './options.js';
import { readParameters, type OutputOf } from './schema.js';

/** The longest name of a tool, in characters. */
export const MAX_TOOL_NAME = 64;

/** Names of tools, and keys of metadata, that begin with this are the protocol's. */
export const RESERVED = 'bridge.';

/** What a running tool knows of its call. */
export interface ToolContext {
  /** Aborted when the call is stopped: see {@link Stopped}. */
  readonly signal: AbortSignal;
  /** The identity of the participant that calls. */
  readonly caller: string;
  /** The call's id. */
  readonly call: string;
  /** When the run is stopped: at the end of the tool's `timeout`, or when the caller no longer waits. */
  readonly deadline: Date;
  /** What the caller sent along. */
  readonly meta: JsonObject;
  /** Reports progress to the caller: a text, or more. */
  progress(report: string | ProgressReport): void;
}

export interface ProgressReport {
  /** Default: `in_progress`. */
  readonly status?: ProgressStatus | undefined;
  readonly message?: string | undefined;
  /** Anything that JSON can hold. */
  readonly content?: unknown;
}

/** How a tool is described and run. Times are in milliseconds. */
export interface ToolOptions<Schema> {
  /** What the tool does, for the model. */
  readonly description: string;
  /** A Standard Schema with JSON Schema, or a plain JSON Schema. Default: any object. */
  readonly parameters?: Schema | undefined;
  /** Runs the tool. What it returns is the result: an object, or any other value, which the caller gets as `{ value }`. */
  readonly execute: (args: OutputOf<Schema>, context: ToolContext) => unknown;
  /**
   * Checks the arguments of a tool whose `parameters` are a plain JSON Schema; such arguments are not checked otherwise.
   * It refuses them by returning `false` or a text, or by throwing.
   */
  readonly validate?: ((args: JsonObject) => unknown) | undefined;
  readonly title?: string | undefined;
  readonly shortTitle?: string | undefined;
  readonly source?: string | undefined;
  readonly outputSchema?: Json | undefined;
  readonly meta?: JsonObject | undefined;
  /** The tool destroys something. A person is asked before it runs, unless `consent` says otherwise. */
  readonly destructive?: boolean | undefined;
  /** The tool may run twice. */
  readonly idempotent?: boolean | undefined;
  readonly readOnly?: boolean | undefined;
  readonly openWorld?: boolean | undefined;
  /** When a person is asked. Default: `always` if it is destructive, else `never`. */
  readonly consent?: Consent | undefined;
  /** The longest time of one run. Default: the caller's limit. */
  readonly timeout?: number | undefined;
  /** The limit of a call whose caller sets none. */
  readonly patience?: number | undefined;
  /** How long the tool may take to clean up when it is stopped. Default: 1,000. */
  readonly cancelGrace?: number | undefined;
  /** What the room sees of calls of an assistant's own tool. Default: `full`. */
  readonly disclose?: Disclose | undefined;
  /** Of an assistant's own tool: a client that offers it too runs it. */
  readonly preferClient?: boolean | undefined;
  /** What happens to an open call when the user interrupts. Default: `cancel`. */
  readonly bargeIn?: BargeIn | undefined;
}

/** A tool that is described completely: made by {@link tool}, and by nothing else. */
export interface Tool {
  readonly [DEFINITION]: Definition;
}

export const DEFINITION: unique symbol = Symbol.for('toolbridge.definition');

/** A tool without its name. */
export interface Definition {
  readonly options: ToolOptions<unknown>;
  readonly execute: (args: unknown, context: ToolContext) => unknown;
}

/** The tools of a participant, by their names. Several such objects may be given as a list. */
export type Tools = { readonly [name: string]: Tool };

/**
 * Describes a tool.
 *
 * ```ts
 * const lamp = tool({
 *   description: 'Switches the lamp',
 *   parameters: z.object({ on: z.boolean() }),
 *   execute: ({ on }) => setLamp(on),
 * });
 * ```
 */
export function tool<Schema = undefined>(options: ToolOptions<Schema>): Tool {
  if (typeof options?.execute !== 'function') throw new TypeError('a tool needs a function `execute`');
  if (typeof options.description !== 'string') throw new TypeError('a tool needs a text `description`');
  const execute = options.execute as (args: unknown, context: ToolContext) => unknown;
  return { [DEFINITION]: { options: options as ToolOptions<unknown>, execute } };
}

/** A tool with its name, ready to be offered and run. */
export interface NamedTool {
  readonly core: CoreTool;
  readonly check?: (value: unknown) => Promise<unknown>;
  readonly execute: (args: unknown, context: ToolContext) => unknown;
}

/** @throws TypeError that names the tool, if it cannot be offered. */
export function nameTools(tools: Tools | readonly Tools[]): Map<string, NamedTool> {
  const named = new Map<string, NamedTool>();
  for (const group of Array.isArray(tools) ? (tools as readonly Tools[]) : [tools as Tools]) {
    if (typeof group !== 'object' || group === null || DEFINITION in group) {
      throw new TypeError('`tools` must be an object of tools by their names, such as { lamp: tool({ … }) }');
    }
    for (const [name, value] of Object.entries(group)) {
      if (named.has(name)) throw new TypeError(`the tool "${name}" is named twice`);
      named.set(name, nameTool(name, value));
    }
  }
  return named;
}

function nameTool(name: string, value: Tool): NamedTool {
  if (name.startsWith(RESERVED)) throw new TypeError(`tool "${name}": names that begin with "${RESERVED}" are reserved`);
  if (name.length > MAX_TOOL_NAME) {
    throw new TypeError(`tool "${name}": the name has ${name.length} characters; ${MAX_TOOL_NAME} are allowed`);
  }
  if (!/^[A-Za-z0-9_.-]+$/.test(name)) {
    throw new TypeError(`tool "${name}": a name has 1 to ${MAX_TOOL_NAME} of the characters A–Z a–z 0–9 _ . -`);
  }
  if (typeof value !== 'object' || value === null || !(DEFINITION in value)) {
    throw new TypeError(`tool "${name}" must be made by tool({ … })`);
  }
  const { options, execute } = value[DEFINITION];
  checkToolOptions(name, options);
  const { schema, check } = readParameters(name, options.parameters, options.validate);
  const core: CoreTool = {
    name,
    description: options.description,
    inputSchema: schema,
    ...fields({
      title: options.title,
      shortTitle: options.shortTitle,
      source: options.source,
      outputSchema: options.outputSchema,
      meta: options.meta,
      destructive: options.destructive,
      idempotent: options.idempotent,
      readOnly: options.readOnly,
      openWorld: options.openWorld,
      consent: options.consent,
      timeoutMs: options.timeout,
      patienceMs: options.patience,
      cancelGraceMs: options.cancelGrace,
      disclose: options.disclose,
      preferClient: options.preferClient,
      bargeIn: options.bargeIn,
    }),
  };
  return { core, execute, ...(check !== undefined && { check }) };
}

type Present<T> = { [Key in keyof T]?: Exclude<T[Key], undefined> };

/** Leaves out the fields that are `undefined`. */
export function fields<T extends object>(all: T): Present<T> {
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined)) as Present<T>;
}
