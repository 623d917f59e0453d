import type { CoreClass } from './core.js';

/** Keeps what was loaded, and not a failure: a page's next client loads again what a network did not bring. */
export function once(load: () => Promise<CoreClass>): () => Promise<CoreClass> {
  let loading: Promise<CoreClass> | undefined;
  const failed = (error: unknown): never => {
    loading = undefined;
    throw error;
  };
  return () => (loading ??= load().catch(failed));
}
