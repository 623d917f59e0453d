/** Loads the core: as WebAssembly, or as plain JavaScript. */
import type { CoreClass } from './core.js';

/** Loads the WebAssembly module, which the package holds as base64 of its gzipped bytes. */
export const loadWasm = once(startWasm);

/** Loads the translation to plain JavaScript. */
export const loadPlain = once(() => import('./core/plain.js').then(({ load }) => load()));

/** Keeps what was loaded, and not a failure: a page's next client loads again what a network did not bring. */
function once(load: () => Promise<CoreClass>): () => Promise<CoreClass> {
  let loading: Promise<CoreClass> | undefined;
  const failed = (error: unknown): never => {
    loading = undefined;
    throw error;
  };
  return () => (loading ??= load().catch(failed));
}

/** Loads the WebAssembly module, or plain JavaScript where WebAssembly is missing or forbidden. */
export async function loadAny(): Promise<CoreClass> {
  try {
    return await loadWasm();
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    console.warn(
      `toolbridge: WebAssembly cannot be used (${why}); plain JavaScript is used, which is slower. ` +
        `A content security policy allows it with script-src 'wasm-unsafe-eval'; import "toolbridge/js" to avoid this warning.`,
    );
    return loadPlain();
  }
}

async function startWasm(): Promise<CoreClass> {
  if (typeof WebAssembly !== 'object') throw new Error('this engine has no WebAssembly');
  if (typeof DecompressionStream !== 'function') throw new Error('this engine has no DecompressionStream');
  const [{ load }, { base64 }] = await Promise.all([import('./core/wasm.js'), import('./core/wasm-bytes.js')]);
  const letters = atob(base64);
  const packed = new Uint8Array(letters.length);
  // A function for each letter would take as long as all the rest.
  for (let at = 0; at < letters.length; at++) packed[at] = letters.charCodeAt(at);
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return load(await new Response(unpacked).arrayBuffer());
}
