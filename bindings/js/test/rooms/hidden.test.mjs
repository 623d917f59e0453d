// Pages that are held back: late timers, a busy script, a frozen page, and one without random numbers.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';

import { Assistant } from 'toolbridge';

import { assistant, closeBrowser, dispose, freshRoom, needs, openFreezablePage, openPage, Room, token, url } from './ends.mjs';

after(async () => {
  await closeBrowser();
  await dispose();
});

const options = { ...needs('server', 'toolbridge', 'chromium'), timeout: 120_000 };

async function client(t, room, init) {
  const page = await openPage(t, { init });
  await page.evaluate((options) => globalThis.startClient(options), { url, token: token(room, 'phone', { role: 'client' }) });
  return page;
}

test('Chromium: timers that are a minute late, as in a hidden tab, do no harm', options, async (t) => {
  const room = freshRoom();
  // Chromium lets the timers of a hidden tab that is silent run once a minute.
  const page = await client(t, room, () => {
    const { setTimeout } = globalThis;
    globalThis.setTimeout = (callback, delay = 0, ...args) => {
      const late = globalThis.isHidden ? Math.ceil((performance.now() + delay) / 60_000) * 60_000 - performance.now() : delay;
      return setTimeout(callback, late, ...args);
    };
  });
  const agent = await assistant(t, room);
  await page.evaluate(() => (globalThis.isHidden = true));
  const begun = performance.now();
  let calls = 0;
  // Longer than any time after which a silent participant counts as lost.
  while (performance.now() - begun < 15_000) {
    assert.deepEqual((await agent.call('echo', { calls })).value, { calls });
    calls += 1;
    if (calls % 20 === 0) assert.equal((await agent.call('hang', { calls }, { timeoutMs: 2_500 })).error.code, 'timeout');
  }
  const hang = agent.begin('hang', { last: true });
  await agent.line((line) => line.type === 'progress' && line.id === hang.id);
  agent.say({ type: 'cancel', id: hang.id });
  assert.equal((await hang.result).error.code, 'cancelled');
  assert.equal(await page.evaluate(() => globalThis.until('stopped: caller')), true);
  await page.evaluate(() => (globalThis.isHidden = false));
  assert.deepEqual((await agent.call('echo', { shown: true })).value, { shown: true });
  assert.deepEqual(agent.lines.filter(({ event }) => event === 'left' || event === 'violation'), []);
});

test('Chromium: page whose script is busy is ready when it answers', options, async (t) => {
  const room = freshRoom();
  const page = await client(t, room);
  const livekit = new Room();
  const bot = new Assistant(livekit);
  t.after(async () => {
    await bot.close();
    await livekit.disconnect();
  });
  // Longer than the assistant takes to be announced, which is 3 s, and then waits for an answer, which is 1 s.
  const busy = page.evaluate(() => {
    for (const end = performance.now() + 8_000; performance.now() < end; );
  });
  await livekit.connect(url, token(room, 'agent', { role: 'assistant' }), { autoSubscribe: false, dynacast: false });
  const tools = await bot.ready('phone', { timeout: 20_000 });
  assert.ok(tools.some(({ name }) => name === 'echo'), JSON.stringify(tools));
  await busy;
  assert.deepEqual(await bot.call('echo', { a: 1 }), { a: 1 });
});

for (const disconnectOnPageLeave of [true, false]) {
  test(`Chromium: frozen page loses its call at once, and is called again when it resumes (disconnectOnPageLeave: ${disconnectOnPageLeave})`, options, async (t) => {
    const room = freshRoom();
    const page = await openFreezablePage(t);
    await page.evaluate((options) => globalThis.startClient(options), { url, token: token(room, 'phone', { role: 'client' }), roomOptions: { disconnectOnPageLeave } });
    await page.evaluate(() => document.addEventListener('freeze', () => (globalThis.wasFrozen = true)));
    const agent = await assistant(t, room);
    const hang = agent.begin('hang', {}, { timeoutMs: 60_000 });
    await page.evaluate(() => globalThis.until('hang'));
    const begun = performance.now();
    await page.send('Page.setWebLifecycleState', { state: 'frozen' });
    assert.equal((await hang.result).error.code, 'lost');
    // A page without a goodbye is given 5 s.
    assert.ok(performance.now() - begun < 4_000, `${performance.now() - begun} ms`);
    assert.equal((await agent.call('echo', {}, { ownerWaitMs: 100 })).error.code, 'unknown_tool');
    await page.send('Page.setWebLifecycleState', { state: 'active' });
    assert.deepEqual((await agent.call('echo', { again: true }, { ownerWaitMs: 20_000 })).value, { again: true });
    assert.equal(await page.evaluate(() => globalThis.wasFrozen), true);
  });
}

test('Chromium: page without crypto.getRandomValues gets an error that names the polyfill', { ...needs('chromium'), timeout: 60_000 }, async (t) => {
  const page = await openPage(t, { init: () => delete Crypto.prototype.getRandomValues });
  const message = await page.evaluate(() => {
    try {
      new globalThis.toolbridge.Client(new globalThis.livekit.Room(), {});
    } catch (error) {
      return error.message;
    }
  });
  assert.match(message, /crypto\.getRandomValues.*react-native-get-random-values/);
});
