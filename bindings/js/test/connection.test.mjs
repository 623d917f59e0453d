// Joining, reconnecting and leaving, with the real core in a room in memory.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Assistant, CallTimeout, Cancelled, Client, Closed, Lost, NotReady, tool } from 'toolbridge';
import { Client as OwnCore } from 'toolbridge/wasm';

import { MemoryRoom, atOnce, later, next, pair } from './memory.mjs';

const echo = tool({ description: 'x', execute: (args) => args });

/** Both ends, not connected. */
function ends(t, { tools = { echo }, client = {}, assistant = {}, ports = {} } = {}) {
  const { room, phone, agent } = pair(ports);
  const app = new Client(phone, { tools, ...client });
  const bot = new Assistant(agent, assistant);
  t.after(() => Promise.all([app.close(), bot.close()]));
  return { room, phone, agent, app, bot };
}

test('rooms that are already connected work, in either order', async (t) => {
  const { phone, agent } = pair();
  agent.connect();
  phone.connect();
  const bot = new Assistant(agent);
  const app = new Client(phone, { tools: { echo } });
  t.after(() => Promise.all([app.close(), bot.close()]));
  await bot.ready('phone');
  assert.deepEqual(await bot.call('echo', { a: 1 }), { a: 1 });
});

test('participant that follows another one in its room is heard after it', async (t) => {
  const { phone, agent } = pair();
  agent.connect();
  phone.connect();
  const bot = new Assistant(agent);
  const first = new Client(phone, { tools: { echo, old: echo } });
  await bot.ready('phone');
  // The second packet of a client waits for the first one, and its goodbye for both.
  await bot.call('echo');
  const publish = phone.publish.bind(phone);
  phone.publish = (...packet) => new Promise(setImmediate).then(() => publish(...packet));
  first.offer({ echo });
  const closed = first.close();
  // One that ends before it begins changes nothing, as the first mounting of a component in React's strict mode.
  const between = new Client(phone).close();
  const second = new Client(phone, { tools: { echo, young: echo } });
  t.after(() => Promise.all([second.close(), bot.close()]));
  assert.deepEqual(await bot.call('young', { a: 1 }), { a: 1 });
  await Promise.all([closed, between]);
});

test('call before the room is connected is refused, and one while it connects waits', async (t) => {
  const { phone, agent, bot } = ends(t);
  await assert.rejects(bot.call('echo'), (error) => error instanceof Closed && error.mayHaveRun === false);
  agent.state = 'connecting';
  const call = bot.call('echo', { a: 1 });
  phone.connect();
  agent.connect();
  assert.deepEqual(await call, { a: 1 });
});

test('time limits and signals hold while the room connects', async (t) => {
  const { phone, agent, bot } = ends(t);
  agent.state = 'connecting';
  const late = await bot.call('echo', {}, { timeout: 30 }).catch((error) => error);
  assert.ok(late instanceof CallTimeout && late.mayHaveRun === false && late.limitMs === 30, String(late));
  assert.match(late.message, /not connected within 30 ms; nothing ran/);
  await assert.rejects(bot.ready('phone', { timeout: 30 }), (error) => error instanceof NotReady && /the room is not connected; waited 30 ms/.test(error.message));
  const stop = new AbortController();
  const call = assert.rejects(bot.call('echo', {}, { signal: stop.signal }), (error) => error instanceof Cancelled && error.mayHaveRun === false);
  const ready = assert.rejects(bot.ready('phone', { signal: stop.signal }), (error) => error === stop.signal.reason);
  stop.abort();
  await Promise.all([call, ready]);
  const both = bot.call('echo', { a: 1 }, { timeout: 20_000, signal: new AbortController().signal });
  phone.connect();
  agent.connect();
  assert.deepEqual(await both, { a: 1 });
});

test('core that cannot be loaded at first is loaded later, and a failure is not kept', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const { loadPlain } = await import(new URL('../dist/esm/load-plain.js', import.meta.url));
  const { ClientBase } = await import(new URL('../dist/esm/client.js', import.meta.url));
  const room = new MemoryRoom();
  for (const failures of [2, 3]) {
    const phone = room.port(`phone${failures}`, {});
    let left = failures;
    const app = new ClientBase(phone, {}, () => (left-- > 0 ? Promise.reject(new Error('a chunk is missing')) : loadPlain()));
    const warnings = [];
    app.on('warning', ({ message }) => warnings.push(message));
    const end = Promise.race([next(app, 'connected'), next(app, 'error')]);
    phone.connect();
    for (const wait of [1_000, 4_000]) {
      while (warnings.length < (wait === 1_000 ? 1 : 2)) await new Promise((resolve) => setImmediate(resolve));
      assert.match(warnings.at(-1), new RegExp(`a chunk is missing; it is tried again in ${wait / 1_000} s`));
      t.mock.timers.tick(wait);
    }
    const found = await end;
    assert.equal('error' in found, failures === 3, JSON.stringify(found));
    t.mock.timers.tick(5_000);
    await app.close();
  }
});

test('assistant whose permissions are unknown is trusted only when they are known', async (t) => {
  const { phone, agent, app } = ends(t, { ports: { assistant: { kind: 'standard', knowsPermissions: false } } });
  phone.connect();
  const joined = next(app, 'joined');
  agent.connect();
  await joined;
  assert.equal(app.assistant, undefined);
  const bound = next(app, 'bound');
  agent.change({ knowsPermissions: true });
  assert.equal((await bound).assistant, 'agent');
});

test('attributes of a participant that may change them are not trusted', async (t) => {
  const { phone, agent, app } = ends(t, { ports: { assistant: { kind: 'standard', canUpdateMetadata: true } } });
  const unaccepted = next(app, 'unaccepted');
  phone.connect();
  agent.connect();
  assert.match((await unaccepted).message, /toolbridge\.role/);
  assert.equal(app.assistant, undefined);
});

test('permission that changes without an event is seen at the next packet', async (t) => {
  const { phone, agent, app, bot } = ends(t, { ports: { assistant: { kind: 'standard' } } });
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  assert.equal(app.assistant, 'agent');
  agent.details.canUpdateMetadata = true; // no event
  await assert.rejects(bot.call('echo', {}, { timeout: 300 }));
  assert.equal(app.participants().find(({ identity }) => identity === 'agent').canUpdateMetadata, true);
});

for (const tellsAnnounced of [true, false]) {
  const sdk = tellsAnnounced ? 'livekit-client' : 'rtc-node'; // which does not say whether the local participant is announced
  test(`client that may no longer publish runs no tool, and runs them again when it may, as with ${sdk}`, async (t) => {
    let runs = 0;
    const count = tool({ description: 'x', execute: () => (runs += 1) });
    const { phone, agent, app, bot } = ends(t, { tools: { count }, ports: { client: { tellsAnnounced } } });
    const forbidden = [];
    app.on('notAllowed', ({ message }) => forbidden.push(message));
    phone.connect();
    agent.connect();
    await bot.ready('phone');
    assert.deepEqual(await bot.call('count'), { value: 1 });
    phone.details.canPublishData = false; // no event
    await assert.rejects(bot.call('count', {}, { timeout: 300 }), (error) => error.code === 'timeout');
    assert.equal(runs, 1);
    assert.match(forbidden[0], /canPublishData/);
    phone.details.canPublishData = true;
    assert.deepEqual(await bot.call('count'), { value: 2 });
  });
}

test('lost connection that returns continues open calls', async (t) => {
  for (const rejoins of [false, true]) {
    for (const who of ['phone', 'agent']) {
      await t.test(`${who}, ${rejoins ? 'another sid' : 'the same sid'}`, async (t) => {
        const at = later();
        const go = later();
        const { phone, agent, bot } = ends(t, {
          tools: {
            slow: tool({
              description: 'x',
              execute: async () => {
                at.resolve();
                await go.promise;
                return 'done';
              },
            }),
          },
        });
        phone.connect();
        agent.connect();
        await bot.ready('phone');
        const call = bot.call('slow');
        await at.promise;
        const lost = who === 'phone' ? phone : agent;
        lost.lose();
        go.resolve(); // the result cannot be sent now
        lost.restore({ rejoins });
        assert.deepEqual(await call, { value: 'done' });
        assert.deepEqual(await bot.call('slow'), { value: 'done' });
      });
    }
  }
});

test('participants that the SDK forgets while it reconnects have not left', async (t) => {
  const { room, phone, agent, bot } = ends(t);
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  const left = [];
  bot.on('left', (event) => left.push(event));
  agent.lose();
  room.ports.delete('phone');
  agent.emit('changed', 'phone');
  await new Promise(setImmediate);
  room.ports.set('phone', phone);
  agent.emit('changed', 'phone');
  agent.restore();
  assert.deepEqual(await bot.call('echo', { a: 1 }), { a: 1 });
  assert.deepEqual(left, []);
});

test('packet that arrives before the core is loaded is not lost', async (t) => {
  const { phone, agent } = pair();
  const loading = later();
  const bot = new Assistant(agent);
  t.after(() => bot.close());
  agent.connect();
  await next(bot, 'connected');
  const { ClientBase } = await import('../dist/esm/client.js');
  const { loadWasm } = await import('../dist/esm/load-wasm.js');
  const app = new ClientBase(phone, { tools: { echo } }, async () => {
    await loading.promise;
    return loadWasm();
  });
  t.after(() => app.close());
  const call = bot.call('echo', { a: 1 }, { to: 'phone' });
  phone.connect();
  await new Promise(setImmediate);
  assert.equal(app.isOpen, false);
  loading.resolve();
  assert.deepEqual(await call, { a: 1 });
});

test('disconnected room closes with its reason, and a new connection begins anew', async (t) => {
  const { phone, agent, app, bot } = ends(t);
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  const closed = next(app, 'closed');
  phone.disconnect({ kind: 'removed' });
  assert.equal((await closed).reason.kind, 'removed');
  assert.equal(app.isOpen, false);
  phone.connect();
  await bot.ready('phone');
  assert.deepEqual(await bot.call('echo', { a: 2 }), { a: 2 });
});

test('page that returns is called again if its room is still connected', async (t) => {
  const { phone, agent, app, bot } = ends(t);
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  for (const isConnected of [true, false]) {
    const left = next(bot, 'toolsChanged');
    phone.leavePage();
    assert.equal(app.isOpen, false);
    await left;
    if (!isConnected) phone.disconnect();
    phone.returnToPage();
    assert.equal(app.isOpen, isConnected);
    if (!isConnected) phone.connect();
    assert.deepEqual(await bot.call('echo', { isConnected }), { isConnected });
  }
});

test('open calls of an assistant that is disconnected end as closed', async (t) => {
  const begun = later();
  const { phone, agent, bot } = ends(t, {
    tools: {
      hang: tool({
        description: 'x',
        execute: () => {
          begun.resolve();
          return new Promise(() => {});
        },
      }),
    },
  });
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  const call = bot.call('hang');
  await begun.promise;
  agent.disconnect({ kind: 'room_deleted' });
  await assert.rejects(call, (error) => (error instanceof Lost || error instanceof Closed) && error.mayHaveRun === true);
});

test('client whose token has no role reports the grant that it lacks', async (t) => {
  const { phone, agent, bot } = ends(t, { ports: { client: { attributes: {} } }, assistant: { admitOnlyRoles: true } });
  const notAdmitted = next(bot, 'notAdmitted');
  phone.connect();
  agent.connect();
  const { client, message } = await notAdmitted;
  assert.equal(client, 'phone');
  assert.match(message, /toolbridge\.role/);
});

test('assistant without a role is reported to the client, with the grant', async (t) => {
  const { phone, agent, app } = ends(t, { ports: { assistant: { attributes: {}, kind: 'standard' } } });
  const unaccepted = next(app, 'unaccepted');
  phone.connect();
  agent.connect();
  assert.match((await unaccepted).message, /toolbridge\.role/);
});

test('assistant whose token gives it no role is warned at once, and no other participant is', async (t) => {
  const role = (name) => ({ 'toolbridge.role': name });
  for (const [kind, attributes, isWarned] of [
    ['standard', {}, true],
    ['standard', role('client'), true],
    ['standard', role('assistant'), false],
    ['agent', {}, false],
    ['agent', role('observer'), true],
  ]) {
    const { phone, agent, app, bot } = ends(t, { ports: { assistant: { attributes, kind } }, client: { assistant: 'agent' } });
    const warnings = { app: [], bot: [] };
    app.on('warning', ({ message }) => warnings.app.push(message));
    bot.on('warning', ({ message }) => warnings.bot.push(message));
    phone.connect();
    agent.connect();
    await bot.ready('phone'); // it names the assistant, which it serves whatever its token says
    assert.equal(warnings.app.length, 0);
    assert.equal(warnings.bot.length, isWarned ? 1 : 0, `${kind} ${JSON.stringify(attributes)}: ${warnings.bot}`);
    if (isWarned) assert.match(warnings.bot[0], /^the token of agent does not make it an assistant: .*`assistant`.*toolbridge\.role=assistant/);
  }
});

test('participant whose token hides it is warned at once', async (t) => {
  const { phone, agent, app, bot } = ends(t, { ports: { client: { isHidden: true }, assistant: { isHidden: true } } });
  const warned = Promise.all([next(app, 'warning'), next(bot, 'warning')]);
  phone.connect();
  agent.connect();
  for (const { message } of await warned) assert.match(message, /^the token of (phone|agent) hides it: .*`hidden`$/);
});

test('rule of the author admits clients, and one that throws counts as false', async (t) => {
  let rule = () => {
    throw new Error('planted');
  };
  const { phone, agent, bot } = ends(t, { ports: { client: { attributes: {} } }, assistant: { admit: (who) => rule(who) } });
  const warning = next(bot, 'warning');
  agent.connect();
  phone.connect();
  assert.match((await warning).message, /planted/);
  rule = ({ identity }) => identity === 'phone';
  phone.change({ attributes: { hello: '1' } });
  await bot.ready('phone');
  assert.deepEqual(await bot.call('echo', { a: 1 }), { a: 1 });
});

test('ready names why a client is not ready', async (t) => {
  const { agent, bot } = ends(t);
  agent.connect();
  await next(bot, 'connected');
  await assert.rejects(bot.ready('nobody', { timeout: 60 }), (error) => error.name === 'NotReady' && /waited 60 ms/.test(error.message) && error.client === 'nobody');
  await assert.rejects(bot.ready('nobody', { signal: AbortSignal.abort(new Error('no')) }), /no/);
});

test('ready of a participant that answers nothing has no tools when the time is over, and waits for one that is slow', async (t) => {
  const { phone, agent } = pair();
  const bot = new Assistant(agent, { times: { silenceMs: 10 } });
  agent.connect();
  phone.connect();
  await next(bot, 'connected');
  const notYet = (error) => (error instanceof NotReady ? undefined : Promise.reject(error));
  let tools;
  while (tools === undefined) tools = await bot.ready('phone', { timeout: 20 }).catch(notYet);
  assert.deepEqual(tools, []);
  const waiting = bot.ready('phone');
  const app = new Client(phone, { tools: { echo } });
  t.after(() => Promise.all([app.close(), bot.close()]));
  assert.deepEqual((await waiting).map(({ name }) => name), ['echo']);
});

/** What the core throws when it panics: its text, or a trap of WebAssembly. */
const PANICS = ['panic: planted at src/session.rs:1', new WebAssembly.RuntimeError('unreachable planted')];

for (const panic of PANICS) test(`panic of the core (${typeof panic}) closes that participant, and reports it; others go on`, async (t) => {
  const { phone, agent } = pair();
  const { ClientBase } = await import('../dist/esm/client.js');
  let panics = false;
  class Session {
    #session;
    static async load() {
      const { loadWasm } = await import('../dist/esm/load-wasm.js');
      const Real = await loadWasm();
      return {
        create: (input) => {
          const own = new Session();
          own.#session = Real.create(input);
          return own;
        },
      };
    }
    handle(...args) {
      if (panics) throw panic;
      return this.#session.handle(...args);
    }
    sent(...args) {
      this.#session.sent(...args);
    }
    start(...args) {
      return this.#session.start(...args);
    }
    nextOutput() {
      return this.#session.nextOutput();
    }
    takeBytes() {
      return this.#session.takeBytes();
    }
    nextDeadline() {
      return this.#session.nextDeadline();
    }
    free() {
      this.#session.free();
    }
  }
  const app = new ClientBase(phone, { tools: { echo } }, Session.load);
  const bot = new Assistant(agent);
  t.after(() => bot.close());
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  const [error, closed] = [next(app, 'error'), next(app, 'closed')];
  panics = true;
  void bot.call('echo', {}, { timeout: 200 }).catch(() => {});
  assert.match((await error).error.message, /planted/);
  await closed;
  assert.equal(app.isOpen, false);
  assert.equal(bot.isOpen, true);
  // The room is free for another participant.
  const again = new OwnCore(phone, { tools: { echo } });
  t.after(() => again.close());
  await next(again, 'registered');
  assert.deepEqual(await bot.call('echo', { a: 1 }), { a: 1 });
});

test('listener that throws affects nobody else', async (t) => {
  const errors = t.mock.method(console, 'error', () => {});
  const { phone, agent, app, bot } = ends(t);
  app.on('registered', () => {
    throw new Error('planted');
  });
  const registered = next(app, 'registered');
  phone.connect();
  agent.connect();
  await registered;
  await bot.ready('phone');
  assert.deepEqual(await bot.call('echo', { a: 1 }), { a: 1 });
  assert.match(String(errors.mock.calls[0].arguments[1]), /planted/);
});

test('participant that closes in a listener says goodbye', async (t) => {
  const { phone, agent, app, bot } = ends(t);
  const hang = tool({ description: 'x', execute: () => new Promise(() => {}) });
  app.offer({ echo: hang });
  app.on('requested', () => void app.close());
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  await atOnce(assert.rejects(bot.call('echo', { a: 1 }), Lost));
});

test('closed participants leave no timer, which would keep a program from ending', async (t) => {
  const timers = () => process.getActiveResourcesInfo().filter((resource) => resource === 'Timeout').length;
  const before = timers();
  const stop = new Set();
  const slow = tool({ description: 'x', execute: (_, { signal }) => new Promise((end) => signal.addEventListener('abort', () => stop.add(end))) });
  const { phone, agent, app, bot } = ends(t, { tools: { echo, slow } });
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  await bot.call('echo', {}, { timeout: 600_000 });
  const [call] = [assert.rejects(bot.call('slow', {}, { timeout: 600_000 })), await next(bot, 'progress')];
  await Promise.all([app.close(), bot.close()]);
  await call;
  assert.equal(timers(), before);
  for (const end of stop) end();
});

test('timers of a hidden page, which fire once a second, do no harm', async (t) => {
  const own = globalThis.setTimeout;
  t.after(() => (globalThis.setTimeout = own));
  globalThis.setTimeout = (run, delay, ...args) => own(run, 1_000 * Math.ceil((delay ?? 0) / 1_000), ...args);
  const { phone, agent, bot } = ends(t, { tools: { echo, hang: tool({ description: 'x', execute: () => new Promise(() => {}) }) } });
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  assert.deepEqual(await bot.call('echo', { a: 1 }), { a: 1 });
  const begun = performance.now();
  await assert.rejects(bot.call('hang', {}, { timeout: 200 }), (error) => error.code === 'timeout');
  const took = performance.now() - begun;
  assert.ok(took > 500 && took < 3_000, `${took} ms`);
  assert.deepEqual(await bot.call('echo', { a: 2 }), { a: 2 });
});

/** A byte stream of these chunks, which then waits. Counts what is read of it. */
function stream(from, id, { length, chunks = [] } = {}) {
  const stream = { from, id, topic: 'toolbridge.frame', length, attributes: {}, reads: 0, isEnded: false };
  const source = {
    next: () => {
      const value = chunks[stream.reads];
      stream.reads += 1;
      return value === undefined ? new Promise(() => undefined) : Promise.resolve({ done: false, value });
    },
    return: async () => ((stream.isEnded = true), { done: true }),
  };
  return Object.assign(stream, { chunks: { [Symbol.asyncIterator]: () => source } });
}

const LARGEST = 16 * 1024 * 1024;

test('streams of a participant without rights are given up at their headers', async (t) => {
  const { room, phone, agent, app, bot } = ends(t);
  phone.connect();
  agent.connect();
  room.port('evil').connect();
  await bot.ready('phone');
  const streams = Array.from({ length: 64 }, (_, at) => stream('evil', `s${at}`, { length: LARGEST, chunks: [new Uint8Array(15_000)] }));
  for (const it of streams) phone.emit('stream', it);
  await new Promise(setImmediate);
  assert.deepEqual(streams.map(({ reads, isEnded }) => [reads, isEnded]), streams.map(() => [0, true]));
  assert.equal(app.stats().stream_refused, 64);
  const text = 'x'.repeat(20_000);
  assert.deepEqual(await bot.call('echo', { text }), { text });
});

test('stream is read until the core does not want it', async (t) => {
  const { phone, agent, app, bot } = ends(t);
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  const long = stream('agent', 'long', { length: 20_000, chunks: [new Uint8Array(15_000), new Uint8Array(15_000), new Uint8Array(15_000)] });
  const open = stream('agent', 'open', { length: 20_000 });
  for (const it of [long, open]) phone.emit('stream', it);
  await new Promise(setImmediate);
  assert.deepEqual([long.reads, long.isEnded, open.reads, open.isEnded], [2, true, 1, false]);
  assert.equal(app.stats().stream_broken, 1);
  await app.close();
  assert.equal(open.isEnded, true, 'its session has ended');
});

test('stream whose reading fails is cut off', async (t) => {
  const { phone, agent, app, bot } = ends(t);
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  const cut = stream('agent', 's');
  cut.chunks[Symbol.asyncIterator]().next = () => Promise.reject(new Error('planted'));
  phone.emit('stream', cut);
  await new Promise(setImmediate);
  assert.equal(app.stats().stream_abandoned, 1);
});

test('streams that arrive too early wait unread, 64 of them', async (t) => {
  const { phone, agent, app, bot } = ends(t);
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  phone.disconnect();
  const early = Array.from({ length: 65 }, (_, at) => stream('agent', `s${at}`, { length: 20_000 }));
  for (const it of early.slice(0, 64)) phone.emit('stream', it);
  assert.deepEqual([app.stats().dropped_streams, early.some(({ reads, isEnded }) => reads > 0 || isEnded)], [undefined, false]);
  phone.emit('stream', early[64]);
  assert.deepEqual([app.stats().dropped_streams, early.filter((it) => it.isEnded).length], [1, 1]);
  phone.connect();
  await new Promise(setImmediate);
  assert.ok(early.slice(0, 64).every(({ reads, isEnded }) => reads > 0 || isEnded));
});

/** A port whose packets are published when the test says so. */
function held(port) {
  const own = port.publish.bind(port);
  const waiting = [];
  port.publish = async (...args) => {
    const gate = later();
    waiting.push({ text: Buffer.from(args[0]).toString('latin1'), publish: () => gate.resolve(own(...args)) });
    await gate.promise;
  };
  return waiting;
}

test('packets of a lane are published one after the other, and none after its join', async (t) => {
  const { phone, agent, bot } = ends(t, { assistant: { fastLane: false } });
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  await bot.call('echo');
  await new Promise((resolve) => setTimeout(resolve, 100)); // acknowledgements
  const waiting = held(agent);
  const calls = ['first', 'second', 'third'].map((text) => bot.call('echo', { text }));
  const has = (text) => waiting.filter((it) => it.text.includes(text)).length;
  await new Promise(setImmediate);
  assert.deepEqual([waiting.length, has('first')], [1, 1]);
  waiting[0].publish();
  await new Promise(setImmediate);
  assert.deepEqual([waiting.length, has('second')], [2, 1]);
  agent.lose();
  agent.restore({ rejoins: true });
  // What the present join sends is not held back by the packet that is still being published.
  const timer = setInterval(() => waiting.slice(2).forEach((it) => it.publish()), 5);
  t.after(() => clearInterval(timer));
  assert.deepEqual((await Promise.all(calls)).map(({ text }) => text), ['first', 'second', 'third']);
  assert.equal(has('third'), 1);
});

test('last packets are published in order, one of each lane at a time, and none after an interruption', async () => {
  const { Sender } = await import(new URL('../dist/esm/sender.js', import.meta.url));
  const port = { state: 'connected', local: () => ({ canPublishData: true }), publish: (bytes) => new Promise((resolve, reject) => waiting.push({ key: bytes[0], resolve, reject })) };
  const waiting = [];
  const passed = [];
  const runner = { sent: (packet) => passed.push(packet), pass: ({ packet, why }) => passed.push([packet, why]) };
  const sender = new Sender(port, runner);
  const send = (packet, lane = 'reliable') => sender.send({ packet, lane, topic: 'toolbridge', to: [] }, new Uint8Array([packet]));
  const keys = () => waiting.map(({ key }) => key);
  send(1);
  send(2);
  send(3, 'lossy');
  assert.deepEqual(keys(), [1, 3]);
  let isFlushed = false;
  void sender.flushed().then(() => (isFlushed = true));
  waiting[0].resolve();
  waiting[1].resolve();
  await new Promise(setImmediate);
  assert.deepEqual([keys(), passed, isFlushed], [[1, 3, 2], [1, 3], false]);
  send(4);
  port.state = 'reconnecting';
  waiting[2].reject(new Error('no'));
  await new Promise(setImmediate);
  assert.deepEqual([keys(), passed], [[1, 3, 2, 4], [1, 3, [2, 'interrupted']]]);
  send(5);
  sender.interrupt();
  send(6); // does not wait for what the SDK still publishes
  waiting[3].resolve();
  await new Promise(setImmediate);
  assert.deepEqual([keys(), passed.length], [[1, 3, 2, 4, 6], 3]);
  sender.begin();
  waiting[4].resolve();
  await sender.flushed();
  assert.equal(passed.length, 3, 'the session has other packets of these keys');
});

test('a stream that stalls gives way to others', async () => {
  const { Inbox } = await import(new URL('../dist/esm/inbox.js', import.meta.url));
  const port = { participant: () => undefined };
  const runner = { isOpen: true, pass: () => ({ type: 'stream', wanted: true }) };
  const view = { isBehind: false, flush() {}, reportUnnoticed() {} };
  const inbox = new Inbox(port, runner, view);
  const givenUp = [];
  const stalled = (id) => ({
    from: 'agent', id, topic: 'toolbridge.frame', attributes: {},
    chunks: { [Symbol.asyncIterator]: () => ({ next: () => new Promise(() => {}), return: async () => givenUp.push(id) }) },
  });
  for (let at = 0; at < 1_024; at += 1) void inbox.stream(stalled(at));
  assert.deepEqual(givenUp, []);
  void inbox.stream(stalled(1_024));
  assert.deepEqual([givenUp, inbox.droppedStreams], [[0], 1]);
  inbox.end();
  assert.equal(givenUp.length, 1_025);
});
