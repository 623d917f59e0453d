// Several participants in a real room: three clients of each kind, and a stranger who forges packets.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';

import { Room, dispose } from '@livekit/rtc-node';
import { Ambiguous, Assistant, Client } from 'toolbridge';
import * as toolbridge from 'toolbridge';

import { offered } from './caller.mjs';
import { assistant, closeBrowser, freshRoom, needs, openPage, token, url } from './ends.mjs';
import { terminalClient } from './terminal-client.mjs';
import { makeTools } from './tools.mjs';

after(async () => {
  await closeBrowser();
  await dispose();
});

const TOPIC = 'toolbridge';
const OPTIONS = { autoSubscribe: false, dynacast: false };

/** A room in Node that is left at the end of the test. */
async function join(t, room, identity, options) {
  const livekit = new Room();
  t.after(() => livekit.disconnect());
  await livekit.connect(url, token(room, identity, options), OPTIONS);
  return livekit;
}

/** A client in Node. `sent` has the packets that it publishes. */
async function nodeClient(t, room, identity, options = {}) {
  const { tools, seen, note, until } = makeTools(toolbridge);
  const livekit = new Room();
  const client = new Client(livekit, { tools, ...options });
  t.after(async () => {
    await client.close();
    await livekit.disconnect();
  });
  await livekit.connect(url, token(room, identity, { role: 'client' }), OPTIONS);
  const sent = record(livekit);
  return { client, livekit, seen, note, until, sent };
}

/** Records the packets that a room in Node publishes. */
function record(livekit) {
  const { localParticipant } = livekit;
  const sent = [];
  const publish = localParticipant.publishData.bind(localParticipant);
  localParticipant.publishData = (bytes, options) => {
    sent.push(Buffer.from(bytes));
    return publish(bytes, options);
  };
  return sent;
}

async function nodeAssistant(t, room, options = {}) {
  const livekit = new Room();
  const bot = new Assistant(livekit, options);
  t.after(async () => {
    await bot.close();
    await livekit.disconnect();
  });
  await livekit.connect(url, token(room, 'agent', { role: 'assistant' }), OPTIONS);
  return { bot, livekit, sent: record(livekit) };
}

/** The packet with another call's id in place of its own, which has the same length. */
function withCall(packet, from, to) {
  const copy = Buffer.from(packet);
  const at = copy.indexOf(from);
  assert.ok(at >= 0 && from.length === to.length);
  copy.write(to, at);
  return copy;
}

test('three clients: a page, Node and the command line run the calls that name them, at the same time', { ...needs('server', 'toolbridge', 'chromium', 'script'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  const page = await openPage(t);
  await page.evaluate((options) => globalThis.startClient(options), { url, token: token(room, 'page', { role: 'client' }) });
  await nodeClient(t, room, 'node');
  await terminalClient(t, room, 'rust');
  const clients = ['page', 'node', 'rust'];
  const { bot } = await nodeAssistant(t, room);
  await offered(bot, clients);
  await assert.rejects(bot.call('echo', {}), (error) => {
    assert.ok(error instanceof Ambiguous, error.message);
    assert.deepEqual([...error.owners].sort(), [...clients].sort());
    assert.equal(error.mayHaveRun, false);
    return true;
  });
  const calls = clients.flatMap((to) => Array.from({ length: 10 }, (_, n) => [to, { to, n }]));
  const results = await Promise.all(calls.map(([to, args]) => bot.call('echo', args, { to })));
  assert.deepEqual(results, calls.map(([, args]) => args));
  await assert.rejects(bot.call('fail', {}, { to: 'page' }), (error) => error.code === 'out_of_range');
  await assert.rejects(bot.call('fail', {}, { to: 'rust' }), (error) => error.code === 'execution_error');
});

test('three clients: command line calls a page and two in Node', { ...needs('server', 'toolbridge', 'chromium'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  const page = await openPage(t);
  await page.evaluate((options) => globalThis.startClient(options), { url, token: token(room, 'page', { role: 'client' }) });
  await nodeClient(t, room, 'one');
  await nodeClient(t, room, 'two');
  const clients = ['page', 'one', 'two'];
  const agent = await assistant(t, room, 'page');
  for (const client of clients) await agent.line((line) => line.event === 'ready' && line.owner === client);
  const { error } = await agent.call('echo', {});
  assert.equal(error.code, 'ambiguous');
  assert.deepEqual([...error.owners].sort(), [...clients].sort());
  for (const to of clients) assert.deepEqual((await agent.call('echo', { to }, { to })).value, { to });
});

test('a stranger’s forged answer settles no call, in Node', { ...needs('server'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  const phone = await nodeClient(t, room, 'phone');
  const { bot, livekit } = await nodeAssistant(t, room);
  const stranger = await join(t, room, 'stranger');
  await offered(bot, ['phone']);
  await forgeAnswers(phone, stranger, {
    call: (tool, args) => bot.call(tool, args, { timeout: 60_000 }),
    requested: () => new Promise((resolve) => bot.on('requested', ({ call }) => resolve(call))),
    received: (count) =>
      new Promise((resolve) => livekit.on('dataReceived', (_, from) => from?.identity === 'stranger' && --count === 0 && resolve())),
  });
});

test('a stranger’s forged answer settles no call, in Chromium', { ...needs('server', 'chromium'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  const phone = await nodeClient(t, room, 'phone');
  const page = await openPage(t);
  await page.evaluate((options) => globalThis.startAssistant(options), { url, token: token(room, 'agent', { role: 'assistant' }), clients: ['phone'] });
  const stranger = await join(t, room, 'stranger');
  await page.evaluate(() => {
    globalThis.fromStranger = 0;
    globalThis.room.on('dataReceived', (...args) => (globalThis.fromStranger += args[5] === 'stranger' ? 1 : 0));
  });
  await forgeAnswers(phone, stranger, {
    call: async (tool, args) => {
      const outcome = await page.evaluate((args) => globalThis.tryCall(...args), [tool, args, { timeout: 60_000 }]);
      if (!('value' in outcome)) throw new Error(JSON.stringify(outcome));
      return outcome.value;
    },
    requested: () => page.evaluate(() => new Promise((resolve) => globalThis.assistant.on('requested', ({ call }) => resolve(call)))),
    received: (count) => page.waitForFunction((count) => globalThis.fromStranger >= count, count),
  });
});

/** Lets a stranger send what a client has sent, with its answer to a first call as that to a second call, which is open. */
async function forgeAnswers(phone, stranger, { call, requested, received }) {
  const [firstId, first] = await Promise.all([requested(), call('echo', { forged: true })]);
  assert.deepEqual(first, { forged: true });
  const answer = phone.sent.find((packet) => packet.includes(firstId) && packet.includes('forged'));
  assert.ok(answer, 'the client has published the answer');
  const requestedSecond = requested();
  let isSettled = false;
  const second = call('steps', {}).finally(() => (isSettled = true));
  const secondId = await requestedSecond;
  // All that the client has sent, so that the numbers of its frames are in order, and each answer is one to the second call.
  const packets = phone.sent.map((packet) => (packet.includes(firstId) ? withCall(packet, firstId, secondId) : packet));
  const arrived = received(4 * packets.length);
  for (const reliable of [true, false]) {
    for (const destination_identities of [['agent'], []]) {
      for (const packet of packets) await stranger.localParticipant.publishData(packet, { reliable, topic: TOPIC, destination_identities });
    }
  }
  await arrived; // the session has read them, too: it listens to the same event
  assert.equal(isSettled, false);
  phone.note('go');
  assert.deepEqual(await second, { value: 'done' });
}

test('a stranger’s chunk in the stream of a result is not read, in Chromium', { ...needs('server', 'chromium'), timeout: 120_000 }, async (t) => {
  const CHUNK = 15_000;
  const room = freshRoom();
  const phone = await nodeClient(t, room, 'phone');
  const page = await openPage(t);
  await page.evaluate((options) => globalThis.startAssistant(options), { url, token: token(room, 'agent', { role: 'assistant' }), clients: ['phone'] });
  const stranger = await join(t, room, 'stranger');
  await page.evaluate(() => {
    Object.assign(globalThis, { forgedChunks: 0, violations: [] });
    globalThis.room.engine.on('dataPacketReceived', ({ participantIdentity, value }) => {
      if (participantIdentity === 'stranger' && value.case === 'streamChunk') globalThis.forgedChunks += 1;
    });
    globalThis.assistant.on('violation', ({ by, what }) => globalThis.violations.push([by, what]));
  });
  // The SDK joins chunks by the stream's id. A stream of another topic opens nothing in the page, and its second chunk comes
  // in place of the client's.
  const { localParticipant } = phone.livekit;
  const streamBytes = localParticipant.streamBytes.bind(localParticipant);
  const streams = [];
  let forged;
  localParticipant.streamBytes = async (options) => {
    streams.push(options.streamId);
    const writer = await streamBytes(options);
    if (streams.length > 1) return writer;
    return {
      write: async (bytes) => {
        await writer.write(bytes.slice(0, CHUNK));
        const { streamId, totalSize } = options;
        forged = await stranger.localParticipant.streamBytes({ streamId, name: 'frame', topic: 'other', totalSize, attributes: {}, destinationIdentities: ['agent'] });
        await forged.write(new Uint8Array(2 * CHUNK).fill('y'.charCodeAt(0)));
        await page.waitForFunction(() => globalThis.forgedChunks === 2);
        await writer.write(bytes.slice(CHUNK));
      },
      close: () => writer.close(),
    };
  };
  const text = 'a'.repeat(60_000);
  const outcome = await page.evaluate((args) => globalThis.tryCall(...args), ['echo', { text }, { timeout: 60_000 }]);
  await forged.close();
  assert.deepEqual(outcome, { value: { text } });
  assert.equal(new Set(streams).size, 2, 'the client has sent the result again');
  assert.deepEqual(await page.evaluate(() => globalThis.violations), [['phone', 'stream_changed']]);
});

test('a stranger’s request and stop reach no tool', { ...needs('server', 'chromium'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  const page = await openPage(t);
  await page.evaluate((options) => globalThis.startClient(options), { url, token: token(room, 'phone', { role: 'client' }) });
  const { bot, sent } = await nodeAssistant(t, room);
  const stranger = await join(t, room, 'stranger');
  await offered(bot, ['phone']);
  const ids = [];
  bot.on('requested', ({ call }) => ids.push(call));
  const controller = new AbortController();
  const hang = bot.call('hang', { first: 1 }, { signal: controller.signal });
  await page.evaluate(() => globalThis.until('hang'));
  controller.abort();
  await assert.rejects(hang, (error) => error.code === 'cancelled');
  await page.evaluate(() => globalThis.until('stopped: caller'));
  const request = sent.find((packet) => packet.includes(ids[0]) && packet.includes('first'));
  const stop = sent.findLast((packet) => packet.includes(ids[0]));
  assert.notEqual(request, stop);

  const steps = bot.call('steps', {});
  while (ids.length < 2) await new Promise((resolve) => bot.on('requested', resolve));
  const reported = page.evaluate(() => globalThis.until('violation'));
  // Another id, as that of a call of the stranger's own; and the stop of the call that runs.
  for (const forged of [withCall(request, ids[0], ids[0].replace(/.$/, (last) => (last === 'a' ? 'b' : 'a'))), withCall(stop, ids[0], ids[1])]) {
    for (const destination_identities of [['phone'], []]) {
      await stranger.localParticipant.publishData(forged, { reliable: true, topic: TOPIC, destination_identities });
    }
  }
  await reported;
  await page.evaluate(() => globalThis.note('go'));
  assert.deepEqual(await steps, { value: 'done' });
  const seen = await page.evaluate(() => globalThis.seen);
  assert.equal(seen.filter((what) => what === 'hang').length, 1, seen.join());
  const violations = await page.evaluate(() => globalThis.events.filter(({ name }) => name === 'violation'));
  assert.deepEqual(violations.filter(({ by }) => by !== 'stranger'), []);
});
