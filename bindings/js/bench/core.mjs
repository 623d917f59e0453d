// What the core costs in an engine: `core.mjs FOLDER [HERMES]`. FOLDER is what `scripts/bindings js` prints, HERMES the folder
// `test/others`. It prints microseconds for a call, of both ends, and what loading takes.

import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';

import { calls } from './core-calls.mjs';

const [folder, hermes] = process.argv.slice(2);
const path = (form) => resolve(folder, form, 'core.js');
const imported = (form) => import(pathToFileURL(path(form)).href);

function print(name, loaded, { median, mean, perCall, longest }) {
  const micros = (ms) => (ms * 1000).toFixed(1);
  console.log(
    `${name}: ${micros(median)} µs a call (mean ${micros(mean)} µs), ${perCall.toFixed(1)} frames a call, ` +
      `${micros(median / perCall)} µs a frame, slowest frame ${longest.toFixed(2)} ms, loaded in ${loaded.toFixed(1)} ms`,
  );
}

async function measure(name, form, count, load) {
  const begun = performance.now();
  const Session = await load(await imported(form));
  const loaded = performance.now() - begun;
  calls(Session, count, () => performance.now()); // the engine compiles what is used
  print(name, loaded, calls(Session, count, () => performance.now()));
}

await measure('WebAssembly in Node', 'wasm', 5_000, (core) => core.load(readFileSync(resolve(folder, 'wasm', 'core.wasm'))));
await measure('JavaScript in Node', 'plain', 2_000, (core) => core.load());

if (hermes !== undefined) {
  const { run } = await import(pathToFileURL(resolve(hermes, 'bundled.mjs')).href);
  const printed = await run(`
    import { load } from ${JSON.stringify(path('plain'))};
    import { calls } from ${JSON.stringify(new URL('core-calls.mjs', import.meta.url).pathname)};
    const begun = Date.now();
    const Session = load();
    const loaded = Date.now() - begun;
    calls(Session, 50, Date.now);
    const count = 500;
    const started = Date.now();
    const { perCall, longest } = calls(Session, count, Date.now);
    const mean = (Date.now() - started) / count; // its clock has whole milliseconds
    print(JSON.stringify({ loaded, median: mean, mean, perCall, longest }));
  `);
  const { loaded, ...found } = JSON.parse(printed);
  print('JavaScript in Hermes', loaded, found);
}
