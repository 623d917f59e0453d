// The hook, in a page in Chromium with React, in a room in memory. A bundler has made the page's script.

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { build } from 'esbuild';
import { chromium } from 'playwright-core';

const { CHROMIUM = '/usr/bin/chromium', TOOLBRIDGE_REQUIRE_PARTS } = process.env;
const isThere = existsSync(CHROMIUM) || TOOLBRIDGE_REQUIRE_PARTS === '1';
const options = { skip: isThere ? false : 'not installed: chromium', timeout: 60_000 };

let browser;
after(() => browser?.close());

async function openPage(t, conditions = []) {
  browser ??= await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
  const { outputFiles } = await build({
    entryPoints: [fileURLToPath(new URL('react-page.mjs', import.meta.url))],
    bundle: true,
    write: false,
    format: 'esm',
    conditions,
    define: { 'process.env.NODE_ENV': '"development"' },
    logLevel: 'warning',
  });
  const page = await browser.newPage();
  t.after(() => page.close());
  page.logs = [];
  page.on('console', (message) => page.logs.push(message.text()));
  page.on('pageerror', (error) => page.logs.push(error.stack));
  await page.setContent('<div id="root"></div>');
  await page.addScriptTag({ type: 'module', content: outputFiles[0].text });
  await page.waitForFunction(() => globalThis.ready);
  return page;
}

for (const [name, conditions] of [['browser', []], ['react-native', ['react-native']]]) {
  test(`${name}: tools are offered while the component is mounted, with the latest handlers`, options, async (t) => {
    const page = await openPage(t, conditions);
    const found = await page.evaluate(async () => {
      const { bot, render, unmount, shown, next } = globalThis;
      const out = {};
      render(1);
      await bot.ready('phone');
      out.first = await bot.call('count');
      await shown('agent 1');
      const registrations = globalThis.registrations();
      render(2); // another handler, the same description
      await shown('agent 2');
      out.second = await bot.call('count');
      out.registeredAgain = globalThis.registrations() - registrations;
      const changed = next('toolsChanged');
      render(3, 'another description');
      await changed;
      out.third = await bot.call('count');
      out.description = bot.tools()[0].tool.description;
      const gone = bot.call('hang').catch((error) => error.kind);
      await globalThis.hanging;
      unmount();
      out.gone = await gone;
      return out;
    });
    assert.deepEqual(found, { first: { value: 1 }, second: { value: 2 }, registeredAgain: 0, third: { value: 3 }, description: 'another description', gone: 'lost' }, page.logs.join('\n'));
  });
}

test('tool that cannot be offered is an error of the hook', options, async (t) => {
  const page = await openPage(t);
  const text = await page.evaluate(async () => {
    globalThis.render(1, 'x', 'bridge.count');
    return globalThis.shown('error');
  });
  assert.match(text, /"bridge\.count"/);
});
