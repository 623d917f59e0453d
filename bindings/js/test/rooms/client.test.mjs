// A client in a real room, in Node and in Chromium, whose assistant is toolbridge's command line.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

import * as toolbridgeModule from 'toolbridge';

import { offered } from './caller.mjs';
import { allowData, assistant, callOnce, Room, closeBrowser, dispose, freshRoom, needs, openPage, toolbridge, token, url } from './ends.mjs';
import { consent, makeTools } from './tools.mjs';

after(async () => {
  await closeBrowser();
  await dispose();
});

/** Watches the packets that a room publishes from now on: the returned function returns the channels of those since its last call. */
function watchPackets({ localParticipant }) {
  const publish = localParticipant.publishData.bind(localParticipant);
  const lanes = [];
  localParticipant.publishData = (bytes, options) => {
    lanes.push(options.reliable ? 'reliable' : 'lossy');
    return publish(bytes, options);
  };
  return () => lanes.splice(0);
}

/**
 * A client in Node. `can` resolves when its SDK knows whether it may publish data, `seen` returns what happened to its tools, and
 * `packets` the channels of the packets since its last call.
 */
async function inNode(t, room, { grants, ...more } = {}) {
  const { tools, note, seen } = makeTools(toolbridgeModule);
  const livekit = new Room();
  const client = new toolbridgeModule.Client(livekit, { tools, consent: (ask) => consent(ask, note) });
  const warnings = [];
  client.on('warning', ({ message }) => warnings.push(message));
  t.after(async () => {
    await client.close();
    await livekit.disconnect();
  });
  await livekit.connect(url, token(room, 'phone', { role: 'client', grants }), { autoSubscribe: false, dynacast: false, ...more });
  const packets = watchPackets(livekit);
  return {
    seen: () => seen,
    warning: async () => {
      while (warnings.length === 0) await new Promise(setImmediate);
      return warnings[0];
    },
    packets: async () => packets(),
    // The SDK reports no event.
    can: async (expected) => {
      while (livekit.localParticipant.info.permission.canPublishData !== expected) await new Promise(setImmediate);
    },
  };
}

async function inChromium(t, room, { grants, ...options } = {}) {
  const page = await openPage(t, options);
  await page.evaluate((options) => globalThis.startClient(options), { url, token: token(room, 'phone', { role: 'client', grants }) });
  await page.evaluate(`(globalThis.packets = (${watchPackets})(globalThis.room), undefined)`);
  return {
    page,
    packets: () => page.evaluate(() => globalThis.packets()),
    until: (what) => page.evaluate((what) => globalThis.until(what), what),
    seen: () => page.evaluate(() => globalThis.seen),
    warning: async () => {
      await page.waitForFunction(() => globalThis.seen.includes('warning'));
      return page.evaluate(() => globalThis.events.find(({ name }) => name === 'warning').message);
    },
    can: (expected) => page.waitForFunction((expected) => globalThis.room.localParticipant.permissions.canPublishData === expected, expected),
  };
}

for (const [name, start, parts] of [
  ['Node', inNode, ['server', 'toolbridge']],
  ['Chromium', inChromium, ['server', 'toolbridge', 'chromium']],
]) {
  const options = { ...needs(...parts), timeout: 120_000 };

  test(`${name}: command line lists, calls and pings the client`, options, async (t) => {
    const room = freshRoom();
    await start(t, room);
    const listed = await toolbridge('tools', '--room', room, '--json');
    assert.deepEqual(JSON.parse(listed.out).filter(({ owner }) => owner === 'phone').map(({ name }) => name).sort(), ['ask', 'broken', 'echo', 'erase', 'fail', 'hang', 'length', 'make', 'note', 'remove', 'steps', 'strict', 'until'], listed.err);
    const called = await callOnce(room, 'echo', { text: 'hi' });
    assert.deepEqual(called.value, { text: 'hi' }, JSON.stringify(called));
    const pinged = await toolbridge('ping', '--room', room, '--count', '50', '--interval', '0ms');
    assert.equal(pinged.status, 0, pinged.out + pinged.err);
  });

  // The SDKs number the two channels differently. A client that took one for the other acknowledged each request by three packets.
  test(`${name}: quick result of a small request is one packet, on the lossy channel`, options, async (t) => {
    const room = freshRoom();
    const { packets } = await start(t, room);
    const agent = await assistant(t, room);
    assert.equal((await agent.call('echo', { text: 'hi' })).error, undefined); // the first request is sent on the reliable channel
    const all = [];
    // Not each one: a machine that is busy for 5 ms has the acknowledgement sent by itself.
    for (let n = 0; n < 200 && !all.includes('lossy'); n += 1) {
      await packets();
      assert.equal((await agent.call('echo', { text: 'hi' })).error, undefined);
      all.push((await packets()).join(' '));
    }
    assert.equal(all.at(-1), 'lossy', all.join(', '));
  });

  test(`${name}: client whose token hides it is warned as soon as it is connected`, options, async (t) => {
    const { warning } = await start(t, freshRoom(), { grants: { hidden: true } });
    assert.match(await warning(), /^the token of phone hides it: .*`hidden`$/);
  });

  test(`${name}: client that the server forbids to publish data runs no tool until it may`, options, async (t) => {
    const room = freshRoom();
    const { can, seen } = await start(t, room);
    const agent = await assistant(t, room);
    assert.equal((await agent.call('note', { what: 'before' })).error, undefined);
    await allowData(room, 'phone', false);
    await can(false);
    assert.notEqual((await agent.call('note', { what: 'meanwhile' }, { timeoutMs: 2_000 })).error, undefined);
    await allowData(room, 'phone', true);
    await can(true);
    assert.equal((await agent.call('note', { what: 'after' })).error, undefined);
    assert.deepEqual((await seen()).filter((what) => ['before', 'meanwhile', 'after'].includes(what)), ['before', 'after']);
  });
}

const browser = { ...needs('server', 'toolbridge', 'chromium'), timeout: 120_000 };

test('Chromium: reload during a call loses it at once, and the new page is called', browser, async (t) => {
  const room = freshRoom();
  const { page, until } = await inChromium(t, room);
  const agent = await assistant(t, room);
  const hang = agent.begin('hang', {}, { timeoutMs: 60_000 });
  await until('hang');
  const begun = performance.now();
  await page.reload();
  const { error } = await hang.result;
  assert.equal(error.code, 'lost', JSON.stringify(error));
  // A page without a goodbye is given 5 s.
  assert.ok(performance.now() - begun < 4_000, `${performance.now() - begun} ms`);
  await page.waitForFunction(() => globalThis.ready);
  await page.evaluate((options) => globalThis.startClient(options), { url, token: token(room, 'phone', { role: 'client' }), registered: true });
  assert.deepEqual((await agent.call('echo', { a: 1 })).value, { a: 1 });
});

test('Chromium: page whose policy forbids WebAssembly uses plain JavaScript, with a warning', browser, async (t) => {
  const room = freshRoom();
  const policy = `default-src 'none'; script-src 'self'; connect-src 'self' ws: http:`;
  const { page } = await inChromium(t, room, { policy });
  const called = await callOnce(room, 'echo', { text: 'hi' });
  assert.deepEqual(called.value, { text: 'hi' }, JSON.stringify(called));
  const warnings = page.logs.filter((line) => line.includes('WebAssembly cannot be used'));
  assert.equal(warnings.length, 1, page.logs.join('\n'));
});

test('Chromium: toolbridge/js works under a strict policy, without a warning', browser, async (t) => {
  const room = freshRoom();
  const policy = `default-src 'none'; script-src 'self'; connect-src 'self' ws: http:`;
  const { page } = await inChromium(t, room, { policy, entry: 'toolbridge/js' });
  const called = await callOnce(room, 'echo', { text: 'hi' });
  assert.deepEqual(called.value, { text: 'hi' }, JSON.stringify(called));
  assert.deepEqual(page.logs.filter((line) => line.includes('WebAssembly')), []);
});

test('Node: large frames that both ends send at once all arrive', { ...needs('server'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  await inNode(t, room);
  const livekit = new Room();
  const bot = new toolbridgeModule.Assistant(livekit);
  t.after(async () => {
    await bot.close();
    await livekit.disconnect();
  });
  await livekit.connect(url, token(room, 'agent', { role: 'assistant' }), { autoSubscribe: false, dynacast: false });
  await offered(bot, ['phone']);
  const text = 'x'.repeat(20_000);
  const calls = Array.from({ length: 48 }, (_, n) => bot.call('echo', { text: text + n }, { timeout: 60_000 }));
  assert.deepEqual(await Promise.all(calls), calls.map((_, n) => ({ text: text + n })));
});

test('Node: room that is encrypted end to end', { ...needs('server', 'toolbridge'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  const folder = mkdtempSync(join(tmpdir(), 'toolbridge-key-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'key');
  writeFileSync(file, 'a shared key', { mode: 0o600 });
  await inNode(t, room, { encryption: { keyProviderOptions: { sharedKey: new TextEncoder().encode('a shared key') } } });
  const called = await callOnce(room, 'echo', { text: 'a'.repeat(20_000) }, '--e2ee-key-file', file);
  assert.equal(called.value?.text.length, 20_000, JSON.stringify(called).slice(0, 300));
  // Without the key nothing is readable.
  const refused = await callOnce(room, 'echo', {}, '--wait', '2s');
  assert.equal(refused.error?.mayHaveRun, false, JSON.stringify(refused));
});
