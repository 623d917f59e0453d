/** The glue of the WebAssembly module; `scripts/bindings js` makes it. */
import type { CoreClass } from '../core.js';

export function load(source: BufferSource | WebAssembly.Module): Promise<CoreClass>;
