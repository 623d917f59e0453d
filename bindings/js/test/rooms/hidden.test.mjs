// Pages that are held back: late timers, a busy script, a frozen page, and one without random numbers.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';

import { Assistant } from 'toolbridge';

import { offered } from './caller.mjs';
import { assistant, closeBrowser, dispose, freshRoom, needs, openPage, Room, token, url } from './ends.mjs';

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
    assert.deepEqual((await agent.call('echo', { calls })).result, { calls });
    calls += 1;
    if (calls % 20 === 0) assert.equal((await agent.call('hang', { calls }, { timeoutMs: 2_500 })).error.code, 'timeout');
  }
  const hang = agent.begin('hang', { last: true });
  await agent.line((line) => line.type === 'progress' && line.id === hang.id);
  agent.say({ type: 'cancel', id: hang.id });
  assert.equal((await hang.result).error.code, 'cancelled');
  assert.equal(await page.evaluate(() => globalThis.until('stopped: caller')), true);
  await page.evaluate(() => (globalThis.isHidden = false));
  assert.deepEqual((await agent.call('echo', { shown: true })).result, { shown: true });
  assert.deepEqual(agent.lines.filter(({ event }) => event === 'left' || event === 'violation'), []);
});

test('Chromium: page whose script is busy is ready without tools, which are known when it answers', options, async (t) => {
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
  assert.deepEqual(await bot.ready('phone', { timeout: 20_000 }), []);
  await busy;
  await offered(bot, ['phone']);
  assert.deepEqual(await bot.call('echo', { a: 1 }), { a: 1 });
});

test('Chromium: page that is about to be frozen loses its call, and is called again when it has joined again', options, async (t) => {
  const room = freshRoom();
  const page = await client(t, room);
  const agent = await assistant(t, room);
  const hang = agent.begin('hang', {}, { timeoutMs: 60_000 });
  await page.evaluate(() => globalThis.until('hang'));
  // Headless Chromium has no hidden tab that it could freeze, so this is the event alone. A script dispatches it, so the goodbye
  // cannot leave between its listeners, and the call is lost when the time to come back is over.
  await page.evaluate(() => document.dispatchEvent(new Event('freeze', { bubbles: true })));
  assert.equal((await hang.result).error.code, 'lost');
  await page.evaluate(({ url, token }) => globalThis.room.connect(url, token, { autoSubscribe: false }), { url, token: token(room, 'phone', { role: 'client' }) });
  await page.evaluate(() => new Promise((resolve) => (globalThis.client.assistant ? resolve() : globalThis.client.on('bound', resolve))));
  assert.deepEqual((await agent.call('echo', { again: true })).result, { again: true });
});

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
