/** The WebAssembly module: base64 of its gzipped bytes. `build.mjs` makes it. */
export const base64: string;
