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

test('tool that cannot be offered is an error of the hook, which does not go on rendering, and recovers', options, async (t) => {
  const page = await openPage(t);
  const found = await page.evaluate(async () => {
    const { bot, render, shown } = globalThis;
    render(1, 'x', 'bridge.count');
    const out = { text: await shown('error') };
    const frames = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    while (globalThis.client?.assistant === undefined) await frames();
    render(2, 'x', 'bridge.count'); // other objects, the same error
    await frames();
    const before = globalThis.renderings;
    await frames();
    out.renderings = globalThis.renderings - before;
    render(3);
    await shown('agent 3');
    out.value = await bot.call('count');
    render(4, 'x', 'bridge.count');
    await shown('error');
    render(5);
    await shown('agent 5');
    return out;
  });
  assert.match(found.text, /"bridge\.count"/);
  assert.equal(found.renderings, 0, 'it goes on rendering');
  assert.deepEqual(found.value, { value: 3 });
});

test('options of a first rendering that are wrong are an error until they are right', options, async (t) => {
  const page = await openPage(t);
  const found = await page.evaluate(async () => {
    const { bot, render, shown } = globalThis;
    render(1, 'x', 'count', { times: { gracePeriod: 1 } });
    const text = await shown('error');
    render(2, 'x', 'count', { times: { graceMs: 5_000 } });
    await shown('agent 2');
    return { text, value: await bot.call('count') };
  });
  assert.match(found.text, /gracePeriod/);
  assert.deepEqual(found.value, { value: 2 });
});

test('consent of a later rendering counts', options, async (t) => {
  const page = await openPage(t);
  const found = await page.evaluate(async () => {
    const { bot, render, shown } = globalThis;
    render(1, 'Counts', 'count', { erases: true, other: 'another' });
    const said = await shown('error');
    await bot.ready('phone');
    const before = await bot.call('erase', {}, { ownerWait: 100 }).catch((error) => error.kind);
    const count = await bot.call('count');
    const first = globalThis.client;
    let asked = 0;
    const consent = () => (asked++, true);
    render(2, 'Counts', 'count', { erases: true, consent });
    await shown('agent 2');
    const erased = await bot.call('erase');
    const second = globalThis.client;
    render(3, 'Counts', 'count', { erases: true, consent: () => (asked += 10, true) });
    await bot.call('erase');
    return { said, before, count, erased, asked, isOther: first !== second, isSame: second === globalThis.client };
  });
  const said = 'error: "erase" needs a person\'s consent, but no consent handler is set other';
  assert.deepEqual(found, { said, before: 'unknown_tool', count: { value: 1 }, erased: { value: 'erased' }, asked: 11, isOther: true, isSame: true });
});

test('components of one room share a client', options, async (t) => {
  const page = await openPage(t);
  const found = await page.evaluate(async () => {
    const { bot, render, shown, next } = globalThis;
    render(1, 'Counts', 'count', { other: 'another' });
    await shown('agent 1 other');
    await bot.ready('phone');
    const out = { count: await bot.call('count'), another: await bot.call('another') };
    render(2, 'Counts', 'count', { other: 'count' });
    out.twice = await shown('agent 2 other: ');
    out.first = await bot.call('count');
    const changed = next('toolsChanged');
    render(3, 'Counts', 'count', { other: 'third' });
    await changed;
    out.third = await bot.call('third');
    const gone = next('toolsChanged');
    render(4); // the other one is gone
    await gone;
    out.left = await bot.call('third', {}, { ownerWait: 100 }).catch((error) => error.kind);
    out.rest = await bot.call('count');
    return out;
  });
  assert.match(found.twice, /the tool "count" is offered by another component, too/);
  delete found.twice;
  assert.deepEqual(found, { count: { value: 1 }, another: { value: 'other' }, first: { value: 2 }, third: { value: 'other' }, left: 'unknown_tool', rest: { value: 4 } });
});
