import type { CallErrorKind, CoreCallError } from './core.js';
import type { Json } from './json.js';

/**
 * The failure of a tool, with a code and a text for the caller. Throw it in `execute`: its text is sent. The text of any
 * other exception stays in this process; the caller gets `execution_error`.
 */
export class ToolError extends Error {
  /**
   * Such as `out_of_range`: at most 64 letters, digits and `_ . -`. Not `timeout`, `cancelled` or `lost`, which say what became
   * of the call itself. Default: `execution_error`.
   */
  readonly code: string;
  /** A partial result. */
  readonly partial?: unknown;

  constructor(message: string, options: { readonly code?: string | undefined; readonly partial?: unknown; readonly cause?: unknown } = {}) {
    super(message, 'cause' in options ? { cause: options.cause } : undefined);
    this.name = 'ToolError';
    this.code = checkedCode(options.code ?? 'execution_error');
    if (options.partial !== undefined) this.partial = options.partial;
  }
}

/** The codes that say what became of a call: a tool's own would hide its text. */
const OF_CALLS = ['timeout', 'cancelled', 'lost'];

function checkedCode(code: unknown): string {
  if (typeof code !== 'string' || !/^[A-Za-z0-9_.-]{1,64}$/.test(code)) {
    const shown = typeof code === 'string' ? `"${code}"` : String(code);
    throw new TypeError(`the code of a ToolError is ${shown}; it must be a text of 1 to 64 letters, digits and _ . -, such as "not_found"`);
  }
  if (OF_CALLS.includes(code)) {
    throw new TypeError(`the code of a ToolError cannot be "${code}", which says what became of the call itself; use another one, such as "printer_${code}"`);
  }
  return code;
}

/** Why a call has no value. Each kind has a subclass. */
export class CallError extends Error {
  readonly kind: CallErrorKind;
  /** The code that events and recordings show. Of a failed tool, the tool's own. */
  readonly code: string;
  /** If false, nothing ran, and a retry is safe. */
  readonly mayHaveRun: boolean;

  constructor(error: CoreCallError) {
    super(error.message);
    this.name = new.target.name;
    this.kind = error.kind;
    this.code = error.code;
    this.mayHaveRun = error.may_have_run;
  }
}

/** The tool failed, or its owner refused to run it, and reported why: see {@link CallError.code}. */
export class ToolFailed extends CallError {
  /** The partial result of the tool, or the data of its error. */
  readonly partial?: Json;

  constructor(error: CoreCallError) {
    super(error);
    if (error.partial !== undefined) this.partial = error.partial;
  }
}

/** No participant offers the tool. */
export class UnknownTool extends CallError {}

/** Several clients offer the tool, and the call names none of them. */
export class Ambiguous extends CallError {
  readonly owners: readonly string[];

  constructor(error: CoreCallError) {
    super(error);
    this.owners = error.owners ?? [];
  }
}

/** The clients are bound to another assistant, or to none because there are several. */
export class NotBound extends CallError {
  readonly owners: readonly string[];

  constructor(error: CoreCallError) {
    super(error);
    this.owners = error.owners ?? [];
  }
}

/** The request never left this process. */
export class NotDelivered extends CallError {}

/** The local token does not allow sending data. */
export class NotAllowed extends CallError {}

/** No result arrived within the limit. */
export class CallTimeout extends CallError {
  /** In milliseconds. */
  readonly limit?: number;

  constructor(error: CoreCallError) {
    super(error);
    if (error.limit !== undefined) this.limit = error.limit;
  }
}

/** The owner left and did not return in time. */
export class Lost extends CallError {
  readonly owner?: string;

  constructor(error: CoreCallError) {
    super(error);
    if (error.owner !== undefined) this.owner = error.owner;
  }
}

/** The call was cancelled. */
export class Cancelled extends CallError {}

/** The turn was interrupted and the call continues: see `lateResults`. */
export class Detached extends CallError {}

/** The turn of this call is over. */
export class TurnOver extends CallError {}

/** The turn has made the same call too often. */
export class TooManyEqual extends CallError {}

/** The request is larger than the limit. */
export class TooLarge extends CallError {
  /** In bytes. */
  readonly size?: number;
  /** In bytes. */
  readonly max?: number;

  constructor(error: CoreCallError) {
    super(error);
    if (error.size !== undefined) this.size = error.size;
    if (error.max !== undefined) this.max = error.max;
  }
}

/** Too many calls to one client are open. */
export class TooManyOpen extends CallError {}

/** The owner is overloaded. */
export class Busy extends CallError {
  readonly owner?: string;

  constructor(error: CoreCallError) {
    super(error);
    if (error.owner !== undefined) this.owner = error.owner;
  }
}

/** A limit of the call, such as its timeout, is not allowed. */
export class InvalidLimit extends CallError {}

/** The arguments cannot be sent. */
export class InvalidArguments extends CallError {}

/** This participant is not in the room, or has left it. */
export class Closed extends CallError {}

const CLASSES: { readonly [Kind in CallErrorKind]: new (error: CoreCallError) => CallError } = {
  tool: ToolFailed,
  unknown_tool: UnknownTool,
  ambiguous: Ambiguous,
  not_bound: NotBound,
  not_delivered: NotDelivered,
  not_allowed: NotAllowed,
  timeout: CallTimeout,
  lost: Lost,
  cancelled: Cancelled,
  detached: Detached,
  turn_over: TurnOver,
  too_many_equal: TooManyEqual,
  too_large: TooLarge,
  too_many_open: TooManyOpen,
  busy: Busy,
  limit: InvalidLimit,
  arguments: InvalidArguments,
  closed: Closed,
};

/** Returns the error of a call that the core describes. */
export function callError(error: CoreCallError): CallError {
  // A core that is newer than this shell may have further kinds.
  const Class: (new (error: CoreCallError) => CallError) | undefined = CLASSES[error.kind];
  return new (Class ?? CallError)(error);
}

/** Returns the error of a call for which there is no session. */
export function closedError(message: string, mayHaveRun: boolean): Closed {
  return new Closed({ kind: 'closed', code: 'closed', message, may_have_run: mayHaveRun });
}
