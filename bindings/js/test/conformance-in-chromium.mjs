// Runs the scripts of bindings/conformance in a page of Chromium, whose path is CHROMIUM, with the core as WebAssembly.

import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

import { build } from 'esbuild';
import { chromium } from 'playwright-core';

const scripts = JSON.parse(readFileSync(new URL('../../conformance/scripts.json', import.meta.url)));
const { outputFiles } = await build({
  absWorkingDir: fileURLToPath(new URL('.', import.meta.url)),
  entryPoints: ['conformance.mjs'],
  bundle: true,
  format: 'iife',
  globalName: 'conformance',
  alias: { toolbridge: 'toolbridge/wasm' },
  write: false,
});
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
try {
  const page = await browser.newPage();
  await page.addScriptTag({ content: outputFiles[0].text });
  const failed = await page.evaluate((scripts) => globalThis.conformance.failures(scripts), scripts);
  if (failed.length > 0) throw new Error(`${failed.length} scripts fail:\n${failed.join('\n')}`);
  console.log(`Chromium ${browser.version()}, wasm: ${scripts.length} scripts hold`);
} finally {
  await browser.close();
}
