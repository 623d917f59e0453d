// An assistant in a real room, in Node and in Chromium, whose clients are toolbridge's command line and pages.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { Assistant, CallTimeout, Cancelled, Client, TooLarge, ToolFailed, UnknownTool } from 'toolbridge';
import * as toolbridge from 'toolbridge';

import { Program, Room, closeBrowser, dispose, freshRoom, needs, openPage, token, url } from './ends.mjs';
import { consent, makeTools } from './tools.mjs';

after(async () => {
  await closeBrowser();
  await dispose();
});

const MAX = 16 * 1024 * 1024;
const toolsFile = fileURLToPath(new URL('tools.toml', import.meta.url));

/** A client over the command line. */
const rustClient = (t, room) => new Program(t, 'client', '--room', room, '--identity', 'phone', '--tools', toolsFile);

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

const refused = (Class, fields) => (error) => {
  assert.ok(error instanceof Class, `${error.constructor.name}: ${error.message}`);
  for (const [name, value] of Object.entries(fields)) assert.deepEqual(error[name], value, `${name}: ${error.message}`);
  return true;
};

test('Node: assistant calls the tools of the command line', { ...needs('server', 'toolbridge'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  rustClient(t, room);
  const bot = await nodeAssistant(t, room);
  assert.deepEqual(bot.tools().map(({ owner, tool }) => `${owner}.${tool.name}`).sort(), ['phone.echo', 'phone.fail', 'phone.hang', 'phone.length']);
  assert.deepEqual(await bot.call('echo', { a: [1, 'ö'] }), { a: [1, 'ö'] });
  await assert.rejects(bot.call('fail'), refused(ToolFailed, { code: 'execution_error', mayHaveRun: true }));
  await assert.rejects(bot.call('nothing', {}, { ownerWait: 100 }), refused(UnknownTool, { mayHaveRun: false }));
  await assert.rejects(bot.call('hang', {}, { timeout: 300 }), (error) => (error instanceof CallTimeout || error instanceof ToolFailed) && error.code === 'timeout' && error.mayHaveRun);
  const controller = new AbortController();
  const steps = [];
  await assert.rejects(
    bot.call('hang', {}, {
      signal: controller.signal,
      onProgress: (step) => {
        steps.push(step.status);
        controller.abort();
      },
    }),
    refused(Cancelled, { code: 'cancelled', mayHaveRun: true }),
  );
  assert.deepEqual(steps, ['in_progress']);
  // A program may write 1 MiB.
  for (const size of [14_000, 15_001, 1_000_000]) {
    assert.equal((await bot.call('echo', { text: 'a'.repeat(size) })).text.length, size);
  }
  const largest = MAX - 1_000;
  assert.deepEqual(await bot.call('length', { text: 'a'.repeat(largest) }, { timeout: 60_000 }), { value: largest + '{"text":""}'.length });
  await assert.rejects(bot.call('length', { text: 'a'.repeat(MAX) }), refused(TooLarge, { mayHaveRun: false, max: MAX }));
});

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

test('Chromium calls the tools of the command line', { ...needs('server', 'toolbridge', 'chromium'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  rustClient(t, room);
  const page = await openPage(t);
  await page.evaluate((options) => globalThis.startAssistant(options), { url, token: token(room, 'agent', { role: 'assistant' }), ready: 'phone' });
  const call = (...args) => page.evaluate((args) => globalThis.tryCall(...args), args);
  assert.deepEqual(await call('echo', { a: 1 }), { value: { a: 1 } });
  const failed = await call('fail');
  assert.equal(failed.name, 'ToolFailed');
  assert.equal(failed.code, 'execution_error');
  assert.equal((await call('nothing', {}, { ownerWait: 100 })).kind, 'unknown_tool');
  assert.equal((await call('hang', {}, { timeout: 300 })).code, 'timeout');
  assert.equal((await call('echo', { text: 'a'.repeat(1_000_000) })).value.text.length, 1_000_000);
  const size = await page.evaluate((size) => globalThis.tryCall('length', { text: 'a'.repeat(size) }, { timeout: 60_000 }), MAX - 1_000);
  assert.deepEqual(size, { value: { value: MAX - 1_000 + '{"text":""}'.length } });
});

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
