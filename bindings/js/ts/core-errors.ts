/** What the exceptions of the core mean. */

/**
 * Whether an exception says that an input is malformed, which had no effect. After any other, such as a panic or a trap of
 * WebAssembly, the session is unusable.
 */
export function isInputError(error: unknown): error is Error & { readonly field: string } {
  return error instanceof Error && 'field' in error;
}

export function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
