import type { CoreClass } from './core.js';
import { once } from './load-once.js';

/** Loads the WebAssembly module, which the package holds as base64 of its gzipped bytes. */
export const loadWasm = once(start);

async function start(): Promise<CoreClass> {
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
