/** Loads the core: as WebAssembly, or as plain JavaScript. */
import type { CoreClass } from './core.js';

let wasm: Promise<CoreClass> | undefined;
let plain: Promise<CoreClass> | undefined;

/** Loads the WebAssembly module, which the package holds as base64 of its gzipped bytes. */
export function loadWasm(): Promise<CoreClass> {
  wasm ??= startWasm();
  return wasm;
}

/** Loads the translation to plain JavaScript. */
export function loadPlain(): Promise<CoreClass> {
  plain ??= import('./core/plain.js').then(({ load }) => load());
  return plain;
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
