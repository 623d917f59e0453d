/** What the exceptions of the core mean. */
import { PANIC } from './core.js';

/** Besides the core's own text, a trap of WebAssembly is a panic, and so is a use of a session after one. */
export function isPanic(error: unknown): boolean {
  const text = textOf(error);
  if (text.startsWith(PANIC)) return true;
  if (typeof WebAssembly === 'object' && error instanceof WebAssembly.RuntimeError) return true;
  return text.includes('recursive use of an object detected') || text.includes('null pointer passed to rust');
}

/** The core refuses values that are larger than any frame as malformed, with both sizes. */
export function tooLarge(error: unknown): { readonly size: number; readonly max: number } | undefined {
  const found = /: (\d+) bytes exceed the limit of (\d+)/.exec(textOf(error));
  return found === null ? undefined : { size: Number(found[1]), max: Number(found[2]) };
}

export function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
