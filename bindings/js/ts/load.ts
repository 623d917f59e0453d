import type { CoreClass } from './core.js';
import { loadPlain } from './load-plain.js';
import { loadWasm } from './load-wasm.js';

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
