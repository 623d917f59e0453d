// The scripts of bindings/conformance in Node.

import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { run } from './conformance.mjs';

for (const script of JSON.parse(readFileSync(new URL('../../conformance/scripts.json', import.meta.url)))) {
  test(`conformance: ${script.name}`, () => run(script));
}
