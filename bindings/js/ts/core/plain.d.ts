/** The core as plain JavaScript; `scripts/bindings js` makes it. */
import type { CoreClass } from '../core.js';

export function load(): CoreClass;
