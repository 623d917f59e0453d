// Runs the scripts of bindings/conformance in Hermes, with the core as plain JavaScript.

import { readFileSync } from 'node:fs';

import { run } from './bundled.mjs';

const scripts = JSON.parse(readFileSync(new URL('../../../conformance/scripts.json', import.meta.url)));
const printed = await run(`
  import './react-native.mjs';
  import { failures } from '../conformance.mjs';
  failures(${JSON.stringify(scripts)}).then((failed) => print(JSON.stringify(failed)));
`);
const failed = JSON.parse(printed);
if (failed.length > 0) throw new Error(`${failed.length} scripts fail:\n${failed.join('\n')}`);
console.log(`Hermes, plain: ${scripts.length} scripts hold`);
