// The rest of the matrix: large frames, three clients and forged answers, for each kind of assistant and client.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';

import { waitable } from './caller.mjs';
import { CELLS, openCell, optionsOf } from './cells.mjs';
import { closeBrowser, dispose, Room, token, url } from './ends.mjs';

after(async () => {
  await closeBrowser();
  await dispose();
});

const MIB = 1024 * 1024;
const MAX = 16 * MIB;

/** The bytes around a text as an argument, or as a result of a program. */
const AROUND = '{"text":""}'.length;

/** The most bytes that a frame has beyond its text. A document of MCP comes with the first 32 KiB of its text for the model. */
const FRAME = { Rust: 34_000 };

/** The time that is left is part of a request, and its number has 1 to 5 bytes. */
const VARIES = 4;

/** The size that an error reports. */
const sizeOf = ({ size, message }) => size ?? Number(/(\d+) bytes/.exec(message.replaceAll(',', ''))?.[1]);

/** The largest size that passes, from the sizes that errors report: the limit is that of the whole frame. */
async function largest(attempt, ...codes) {
  let near = MAX - 20; // above the limit with the frame
  for (let tries = 0; tries < 4; tries += 1) {
    const { error } = await attempt(near);
    if (error === undefined) return near;
    assert.ok(codes.includes(error.code), JSON.stringify(error));
    near -= sizeOf(error) - MAX;
  }
  throw new Error(`no size passed, down to ${near}`);
}

async function passes({ recording }) {
  const { status, report } = await recording.check();
  assert.equal(status, 0, report);
}

for (const cell of CELLS) {
  test(`${cell.name}: 1 MiB, 16 MiB, and one byte more`, optionsOf(cell, 240_000), async (t) => {
    const opened = await openCell(t, cell);
    const { call } = opened;
    const long = { timeout: 60_000, measure: true };
    const fill = MIB - AROUND;
    assert.deepEqual(await call('echo', {}, { ...long, fill }), { value: { length: fill, isIntact: true } });
    // A program may write 1 MiB.
    const { error: written } = await call('echo', {}, { ...long, fill: fill + 1 });
    assert.equal(written?.code, cell.owner === 'Rust' ? 'result_too_large' : undefined, JSON.stringify(written));
    const make = (size) => call('make', { size }, long);
    const result = await largest(make, 'result_too_large');
    assert.ok(result > MAX - (FRAME[cell.owner] ?? 1_000), String(result));
    assert.equal((await make(result + 1)).error?.code, 'result_too_large');
    const send = (fill) => call('length', {}, { timeout: 60_000, fill });
    // The command line refuses such arguments already when it reads the line.
    const codes = cell.caller === 'Rust' ? ['too_large', 'bad_command'] : ['too_large'];
    const request = (await largest((size) => send(size - VARIES), ...codes)) - VARIES;
    assert.ok(request > MAX - 1_000, String(request));
    const { error } = await send(request + 1 + 2 * VARIES);
    assert.ok(codes.includes(error?.code), JSON.stringify(error));
    assert.equal(error.mayHaveRun, false);
    await passes(opened);
  });

  test(`${cell.name}: three clients`, optionsOf(cell, 60_000), async (t) => {
    const clients = ['phone', 'tablet', 'watch'];
    const opened = await openCell(t, cell, clients);
    const { call } = opened;
    const { error } = await call('echo', {});
    assert.equal(error?.code, 'ambiguous', JSON.stringify(error));
    assert.deepEqual([...error.owners].sort(), clients);
    const sent = clients.flatMap((to) => Array.from({ length: 10 }, (_, n) => ({ to, n })));
    const results = await Promise.all(sent.map((args) => call('echo', args, { to: args.to })));
    assert.deepEqual(results, sent.map((value) => ({ value })));
    assert.equal((await call('fail', {}, { to: 'tablet' })).error?.message, 'the watch is out of range');
    await passes(opened);
  });

  test(`${cell.name}: forged answers settle no call`, optionsOf(cell, 60_000), async (t) => {
    const opened = await openCell(t, cell);
    const { begin, call, requested, violation } = opened;
    // An observer gets copies of the client's answers, and can send them with another call's id.
    const stranger = new Room();
    t.after(() => stranger.disconnect());
    const packets = [];
    const copies = waitable(packets);
    stranger.on('dataReceived', (bytes, from, _, topic) => {
      if (from?.identity === 'phone' && topic === 'toolbridge') copies.add(Buffer.from(bytes));
    });
    await stranger.connect(url, token(opened.room, 'stranger', { role: 'observer' }), { autoSubscribe: false, dynacast: false });
    await copies.until(() => true); // the client knows the observer: this is its registration
    assert.deepEqual(await call('echo', { forged: true }), { value: { forged: true } });
    const first = await requested('echo');
    const answer = await copies.until((packet) => packet.includes(first) && packet.includes('forged'));
    const steps = await begin('steps');
    await steps.progress('half');
    const second = await requested('steps');
    assert.equal(first.length, second.length);
    let isSettled = false;
    const result = steps.result().finally(() => (isSettled = true));
    for (const packet of new Set([...packets, answer])) {
      const forged = Buffer.from(packet);
      const at = forged.indexOf(first);
      if (at >= 0) forged.write(second, at);
      for (const reliable of [true, false]) {
        await stranger.localParticipant.publishData(forged, { reliable, topic: 'toolbridge', destination_identities: ['agent'] });
      }
    }
    await violation('stranger');
    assert.equal(isSettled, false);
    await call('note', { what: 'go' });
    assert.deepEqual(await result, { value: { value: 'done' } });
    await passes(opened);
  });
}
