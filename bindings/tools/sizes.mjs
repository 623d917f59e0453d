// Prints the sizes of what `scripts/bindings js` made, in kilobytes of 1,000 bytes: `sizes.mjs FOLDER`.
import { readFileSync } from "node:fs";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

const [folder] = process.argv.slice(2);
const brotli = (bytes) => brotliCompressSync(bytes, { params: { [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length } });
for (const name of ["wasm/core.wasm", "wasm/core.js", "plain/core.js"]) {
  const bytes = readFileSync(`${folder}/${name}`);
  const sizes = [bytes.length, gzipSync(bytes, { level: 9 }).length, brotli(bytes).length];
  const [raw, gzip, best] = sizes.map((size) => `${(size / 1000).toFixed(1)} KB`);
  console.log(`${name}: ${raw} raw, ${gzip} gzip, ${best} brotli`);
}
