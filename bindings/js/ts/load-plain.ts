import { once } from './load-once.js';

/** Loads the translation to plain JavaScript. */
export const loadPlain = once(() => import('./core/plain.js').then(({ load }) => load()));
