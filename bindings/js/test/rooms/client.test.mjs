// A client in a real room, in Node and in Chromium, whose assistant is toolbridge's command line.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

import * as toolbridgeModule from 'toolbridge';

import { assistant, callOnce, Room, closeBrowser, dispose, freshRoom, needs, openPage, toolbridge, token, url } from './ends.mjs';
import { consent, makeTools } from './tools.mjs';

after(async () => {
  await closeBrowser();
  await dispose();
});

/** A client in Node: what `seen` has, and `until`. */
async function inNode(t, room, more = {}) {
  const { tools, note, until } = makeTools(toolbridgeModule);
  const livekit = new Room();
  const client = new toolbridgeModule.Client(livekit, { tools, consent: (ask) => consent(ask, note) });
  t.after(async () => {
    await client.close();
    await livekit.disconnect();
  });
  await livekit.connect(url, token(room, 'phone', { role: 'client' }), { autoSubscribe: false, dynacast: false, ...more });
  return { note: async (what) => note(what), until };
}

async function inChromium(t, room, options) {
  const page = await openPage(t, options);
  await page.evaluate((options) => globalThis.startClient(options), { url, token: token(room, 'phone', { role: 'client' }) });
  return {
    page,
    note: (what) => page.evaluate((what) => globalThis.note(what), what),
    until: (what) => page.evaluate((what) => globalThis.until(what), what),
  };
}

const MAX = 16 * 1024 * 1024;

for (const [name, start, parts] of [
  ['Node', inNode, ['server', 'toolbridge']],
  ['Chromium', inChromium, ['server', 'toolbridge', 'chromium']],
]) {
  const options = { ...needs(...parts), timeout: 120_000 };

  test(`${name}: command line lists, calls and pings the client`, options, async (t) => {
    const room = freshRoom();
    await start(t, room);
    const listed = await toolbridge('tools', '--room', room, '--json');
    assert.deepEqual(JSON.parse(listed.out).filter(({ owner }) => owner === 'phone').map(({ name }) => name).sort(), ['ask', 'broken', 'echo', 'fail', 'hang', 'length', 'make', 'remove', 'steps', 'strict'], listed.err);
    const called = await callOnce(room, 'echo', { text: 'hi' });
    assert.deepEqual(called.result, { text: 'hi' }, JSON.stringify(called));
    const pinged = await toolbridge('ping', '--room', room, '--count', '50', '--interval', '0ms');
    assert.equal(pinged.status, 0, pinged.out + pinged.err);
  });

  test(`${name}: success, each error, timeout, cancellation, progress and consent`, options, async (t) => {
    const room = freshRoom();
    const { note, until } = await start(t, room);
    const agent = await assistant(t, room);
    const refused = async (tool, args, fields, more) => {
      const line = await agent.call(tool, args, more);
      assert.equal(line.ok, false, JSON.stringify(line));
      for (const [field, value] of Object.entries(fields)) assert.deepEqual(line.error[field], value, `${tool}: ${JSON.stringify(line)}`);
    };
    assert.deepEqual((await agent.call('echo', { a: [1, 'ö', null] })).result, { a: [1, 'ö', null] });
    await refused('fail', {}, { code: 'out_of_range', message: 'the watch is out of range', mayHaveRun: true });
    await refused('broken', {}, { code: 'execution_error', message: 'the tool failed' });
    await refused('strict', { n: 'x' }, { code: 'invalid_parameters', message: 'n: must be a number', mayHaveRun: false });
    await refused('nothing', {}, { code: 'unknown_tool', mayHaveRun: false }, { ownerWaitMs: 100 });
    await refused('hang', {}, { code: 'timeout' }, { timeoutMs: 300 });
    assert.equal(await until('stopped: deadline'), true);

    const hang = agent.begin('hang', { again: true });
    await agent.line((line) => line.type === 'progress' && line.id === hang.id);
    agent.say({ type: 'cancel', id: hang.id });
    assert.equal((await hang.result).error.code, 'cancelled');
    assert.equal(await until('stopped: caller'), true);

    const turn = agent.begin('hang', { turn: 1 }, { turn: 1 });
    await agent.line((line) => line.type === 'progress' && line.id === turn.id);
    agent.say({ type: 'barge_in', turn: 1 });
    assert.equal((await turn.result).error.code, 'cancelled');
    assert.equal(await until('stopped: barge_in'), true);

    const steps = agent.begin('steps');
    await agent.line((line) => line.type === 'progress' && line.id === steps.id && line.message === 'half');
    await note('go');
    assert.deepEqual((await steps.result).result, { value: 'done' });

    assert.deepEqual((await agent.call('remove', {})).result, { value: 'gone' });
    await refused('remove', { no: true }, { code: 'permission_denied', mayHaveRun: false });
    const asked = agent.begin('ask', { never: true });
    await until('asked');
    agent.say({ type: 'cancel', id: asked.id });
    assert.equal(await until('withdrawn'), true);
  });

  test(`${name}: frames of 14 KB to 16 MiB, and one byte more`, options, async (t) => {
    const room = freshRoom();
    await start(t, room);
    const agent = await assistant(t, room);
    const long = { timeoutMs: 60_000 };
    for (const size of [14_000, 15_001, 1024 * 1024]) {
      const text = 'a'.repeat(size);
      assert.ok((await agent.call('echo', { text }, long)).result.text === text, String(size));
    }
    // The limit is that of the whole frame: the error tells its size.
    const near = MAX - 20;
    const { error } = await agent.call('make', { size: near }, long);
    assert.equal(error.code, 'result_too_large', JSON.stringify(error));
    const largest = near - (Number(/has (\d+) bytes/.exec(error.message)[1]) - MAX);
    assert.equal((await agent.call('make', { size: largest }, long)).result.text.length, largest);
    assert.equal((await agent.call('make', { size: largest + 1 }, long)).error.code, 'result_too_large');
    const request = 'a'.repeat(MAX - 1_000);
    assert.deepEqual((await agent.call('length', { text: request }, long)).result, { value: request.length });
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
  assert.deepEqual((await agent.call('echo', { a: 1 })).result, { a: 1 });
});

test('Chromium: page whose policy forbids WebAssembly uses plain JavaScript, with a warning', browser, async (t) => {
  const room = freshRoom();
  const policy = `default-src 'none'; script-src 'self'; connect-src 'self' ws: http:`;
  const { page } = await inChromium(t, room, { policy });
  const called = await callOnce(room, 'echo', { text: 'hi' });
  assert.deepEqual(called.result, { text: 'hi' }, JSON.stringify(called));
  const warnings = page.logs.filter((line) => line.includes('WebAssembly cannot be used'));
  assert.equal(warnings.length, 1, page.logs.join('\n'));
});

test('Chromium: toolbridge/js works under a strict policy, without a warning', browser, async (t) => {
  const room = freshRoom();
  const policy = `default-src 'none'; script-src 'self'; connect-src 'self' ws: http:`;
  const { page } = await inChromium(t, room, { policy, entry: 'toolbridge/js' });
  const called = await callOnce(room, 'echo', { text: 'hi' });
  assert.deepEqual(called.result, { text: 'hi' }, JSON.stringify(called));
  assert.deepEqual(page.logs.filter((line) => line.includes('WebAssembly')), []);
});

test('Node: room that is encrypted end to end', { ...needs('server', 'toolbridge'), timeout: 120_000 }, async (t) => {
  const room = freshRoom();
  const folder = mkdtempSync(join(tmpdir(), 'toolbridge-key-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'key');
  writeFileSync(file, 'a shared key', { mode: 0o600 });
  await inNode(t, room, { encryption: { keyProviderOptions: { sharedKey: new TextEncoder().encode('a shared key') } } });
  const called = await callOnce(room, 'echo', { text: 'a'.repeat(20_000) }, '--e2ee-key-file', file);
  assert.equal(called.result?.text.length, 20_000, JSON.stringify(called).slice(0, 300));
  // Without the key nothing is readable.
  const refused = await callOnce(room, 'echo', {}, '--wait', '2s');
  assert.equal(refused.outcome, 'failed');
});
