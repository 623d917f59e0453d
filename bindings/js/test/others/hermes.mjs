// Replays traces in Hermes: `hermes.mjs CORE TRACES [COUNT]`. CORE is the `plain/core.js` that `scripts/bindings js` makes.

import { readFileSync, readdirSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

import { run } from './bundled.mjs';

const [core, traces, count = '100'] = process.argv.slice(2);
const here = fileURLToPath(new URL('.', import.meta.url));

const names = readdirSync(traces).filter((name) => name.endsWith('.jsonl')).sort().slice(0, Number(count));
if (names.length === 0) throw new Error(`there are no traces in ${traces}`);
const texts = names.map((name) => readFileSync(join(traces, name), 'utf8'));

console.log(await run(PROGRAM()));

function PROGRAM() {
  return `
import { load } from ${JSON.stringify(resolve(core))};
import { replay } from ${JSON.stringify(join(here, '../../trace.mjs'))};

const begun = Date.now();
const Session = load();
const loaded = Date.now();
const traces = ${JSON.stringify(Object.fromEntries(names.map((name, at) => [name, texts[at]])))};
let lines = 0;
for (const name of Object.keys(traces)) {
  const { equal, expected, found } = replay(Session, traces[name], toBase64);
  if (equal === undefined) throw new Error(name + ': the trace has ' + expected + '\\nand the core ' + found);
  lines += equal;
}
print('Hermes: ' + Object.keys(traces).length + ' traces, ' + lines + ' lines are equal; loaded in ' + (loaded - begun) + ' ms, ' +
  ((Date.now() - loaded) / lines).toFixed(2) + ' ms per line');

function toBase64(bytes) {
  const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
  let text = '';
  for (let at = 0; at < bytes.length; at += 3) {
    const [a, b, c] = [bytes[at], bytes[at + 1], bytes[at + 2]];
    text += letters[a >> 2] + letters[((a & 3) << 4) | ((b ?? 0) >> 4)];
    text += b === undefined ? '=' : letters[((b & 15) << 2) | ((c ?? 0) >> 6)];
    text += c === undefined ? '=' : letters[c & 63];
  }
  return text;
}
`;
}
