// An assistant in Node, in a real room, whose client reconnects. matrix.test.mjs has its calls.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';

import { Assistant, Client } from 'toolbridge';
import * as toolbridge from 'toolbridge';

import { Room, closeBrowser, dispose, freshRoom, needs, openPage, token, url } from './ends.mjs';
import { consent, makeTools } from './tools.mjs';

after(async () => {
  await closeBrowser();
  await dispose();
});

/** An assistant in Node that waits until the client is ready. */
async function nodeAssistant(t, room) {
  const livekit = new Room();
  const bot = new Assistant(livekit);
  t.after(async () => {
    await bot.close();
    await livekit.disconnect();
  });
  await livekit.connect(url, token(room, 'agent', { role: 'assistant' }), { autoSubscribe: false, dynacast: false });
  await bot.ready('phone', { timeout: 20_000 });
  return bot;
}

async function pageClient(t, room) {
  const page = await openPage(t);
  await page.evaluate((options) => globalThis.startClient(options), { url, token: token(room, 'phone', { role: 'client' }) });
  return {
    page,
    note: (what) => page.evaluate((what) => globalThis.note(what), what),
    until: (what) => page.evaluate((what) => globalThis.until(what), what),
  };
}

test('Node: a client that joins again under another sid keeps its call', { ...needs('server'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  const { tools, note, until } = makeTools(toolbridge);
  const livekit = new Room();
  const app = new Client(livekit, { tools, consent: (ask) => consent(ask, note) });
  t.after(async () => {
    await app.close();
    await livekit.disconnect();
  });
  await livekit.connect(url, token(room, 'phone', { role: 'client' }), { autoSubscribe: false, dynacast: false });
  const bot = await nodeAssistant(t, room);
  const connection = [];
  app.on('connection', ({ state }) => connection.push(state));
  const steps = bot.call('steps', {}, { timeout: 60_000, onProgress: ({ message }) => message === 'half' && note('half') });
  await until('half');
  const before = livekit.localParticipant.sid;
  const reconnected = new Promise((resolve) => livekit.once('reconnected', resolve));
  await livekit.simulateScenario(FULL_RECONNECT);
  await reconnected;
  note('go');
  assert.deepEqual(await steps, { value: 'done' });
  assert.deepEqual(await bot.call('echo', { a: 2 }), { a: 2 });
  t.diagnostic(`sid ${before} → ${livekit.localParticipant.sid}, ${connection.join()}`);
});

/** The FFI's `SimulateScenarioKind` of a full reconnect. */
const FULL_RECONNECT = 7;

test('Chromium: full reconnect of the page keeps its open call', { ...needs('server', 'chromium'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  const { page, note } = await pageClient(t, room);
  const bot = await nodeAssistant(t, room);
  let half;
  const started = new Promise((resolve) => (half = resolve));
  const steps = bot.call('steps', {}, { timeout: 60_000, onProgress: ({ message }) => message === 'half' && half() });
  await started;
  const sids = await page.evaluate(async () => {
    const before = globalThis.room.localParticipant.sid;
    const reconnected = new Promise((resolve) => globalThis.room.once('reconnected', resolve));
    await globalThis.room.simulateScenario('full-reconnect');
    await reconnected;
    return [before, globalThis.room.localParticipant.sid];
  });
  assert.notEqual(sids[0], sids[1]);
  await note('go');
  assert.deepEqual(await steps, { value: 'done' });
  assert.deepEqual(await bot.call('echo', { a: 2 }), { a: 2 });
});

test('Chromium: resumed signaling keeps the open call', { ...needs('server', 'chromium'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  const { page, note } = await pageClient(t, room);
  const bot = await nodeAssistant(t, room);
  let half;
  const started = new Promise((resolve) => (half = resolve));
  const steps = bot.call('steps', {}, { timeout: 60_000, onProgress: ({ message }) => message === 'half' && half() });
  await started;
  await page.evaluate(async () => {
    const reconnected = new Promise((resolve) => globalThis.room.once('reconnected', resolve));
    await globalThis.room.simulateScenario('signal-reconnect');
    await reconnected;
  });
  await note('go');
  assert.deepEqual(await steps, { value: 'done' });
});
