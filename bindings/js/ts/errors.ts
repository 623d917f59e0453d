import { CALL_ERRORS, CallError, Closed, type CoreCallError } from './vocabulary.js';

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

/** Returns the error of a call that the core describes. */
export function callError(error: CoreCallError): CallError {
  return new (CALL_ERRORS[error.kind] ?? CallError)(error);
}

/** Returns the error of a call for which there is no session. */
export function closedError(message: string, mayHaveRun: boolean): Closed {
  return new Closed({ kind: 'closed', code: 'closed', message, mayHaveRun });
}
