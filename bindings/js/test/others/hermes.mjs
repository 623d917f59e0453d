// Replays traces in Hermes, the engine of React Native: `hermes.mjs CORE TRACES [COUNT]`. CORE is the `plain/core.js` that
// `scripts/bindings js` makes. As React Native's bundler does, it turns classes into functions, which Hermes 0.12 does not know.

import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

import { transformFileSync } from '@babel/core';
import classes from '@babel/plugin-transform-classes';
import { build } from '../../node_modules/esbuild/lib/main.js';

const [core, traces, count = '100'] = process.argv.slice(2);
const hermes = fileURLToPath(new URL('node_modules/hermes-engine-cli/linux64-bin/hermes', import.meta.url));
const here = fileURLToPath(new URL('.', import.meta.url));

const names = readdirSync(traces).filter((name) => name.endsWith('.jsonl')).sort().slice(0, Number(count));
if (names.length === 0) throw new Error(`there are no traces in ${traces}`);
const texts = names.map((name) => readFileSync(join(traces, name), 'utf8'));

const lowerClasses = {
  name: 'classes',
  setup: (build) =>
    build.onLoad({ filter: /\.js$/ }, ({ path }) => ({
      contents: transformFileSync(path, { plugins: [classes], compact: true, babelrc: false, configFile: false }).code,
      loader: 'js',
    })),
};
const { outputFiles } = await build({
  stdin: { contents: PROGRAM(), resolveDir: here },
  bundle: true,
  format: 'iife',
  target: 'es2018',
  write: false,
  plugins: [lowerClasses],
});
const folder = mkdtempSync(join(tmpdir(), 'toolbridge-hermes-'));
try {
  const program = join(folder, 'program.js');
  writeFileSync(program, outputFiles[0].text);
  console.log(execFileSync(hermes, ['-O', program], { encoding: 'utf8', maxBuffer: 64 * 1024 * 1024 }).trim());
} finally {
  rmSync(folder, { recursive: true });
}

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
