// What a bundler puts into a bundle for each entry. A bundle with both cores is two megabytes larger, and minifying takes minutes.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { build } from 'esbuild';

const WASM = 'wasm-bytes.js';
const PLAIN = 'plain.js';

for (const [entry, cores] of [['toolbridge', [PLAIN, WASM]], ['toolbridge/wasm', [WASM]], ['toolbridge/js', [PLAIN]]]) {
  test(`bundle of ${entry} has ${cores.join(' and ')}`, async () => {
    const { metafile } = await build({
      stdin: { contents: `export { Client } from '${entry}'`, resolveDir: fileURLToPath(new URL('.', import.meta.url)) },
      bundle: true,
      format: 'esm',
      external: ['livekit-client', '@livekit/rtc-node'],
      write: false,
      outdir: 'out',
      metafile: true,
    });
    const names = Object.keys(metafile.inputs).map((path) => path.split('/').at(-1));
    assert.deepEqual(names.filter((name) => name === WASM || name === PLAIN).sort(), cores);
  });
}

test('package has the licenses of everything in it', () => {
  const packed = JSON.parse(execFileSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], { cwd: fileURLToPath(new URL('..', import.meta.url)), encoding: 'utf8' }));
  const names = packed[0].files.map((file) => file.path);
  for (const name of ['LICENSE-APACHE', 'LICENSE-MIT', 'THIRD-PARTY.txt']) assert.ok(names.includes(name), name);
});
