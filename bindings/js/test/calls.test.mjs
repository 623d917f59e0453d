// Calls between an assistant and a client in a room in memory, with the real core.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { runInNewContext } from 'node:vm';

import { Ambiguous, Assistant, Busy, CallError, CallTimeout, Cancelled, Client, Closed, Detached, InvalidArguments, InvalidLimit, Lost, Stopped, TooLarge, ToolError, ToolFailed, UnknownTool, tool } from 'toolbridge';
import { z } from 'zod';

import { MemoryRoom, atOnce, later, next, pair } from './memory.mjs';

/** Connects a client with these tools and an assistant, and waits until the assistant has the tools. */
async function connected(t, tools, { client = {}, assistant = {}, ports = {} } = {}) {
  const { room, phone, agent } = pair(ports);
  const app = new Client(phone, { tools, ...client });
  const bot = new Assistant(agent, assistant);
  t.after(() => Promise.all([app.close(), bot.close()]));
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  return { room, phone, agent, app, bot };
}

const refused = (Class, fields) => (error) => {
  assert.ok(error instanceof Class, `${error.constructor.name}: ${error.message}`);
  assert.ok(error instanceof CallError);
  for (const [name, value] of Object.entries(fields)) assert.deepEqual(error[name], value, name);
  return true;
};

test('call returns the result of the tool, with its context', async (t) => {
  let seen;
  const lamp = tool({
    description: 'Switches the lamp',
    parameters: z.object({ on: z.boolean(), level: z.number().default(3) }),
    execute: (args, cx) => {
      seen = { args, caller: cx.caller, left: cx.deadline.getTime() - Date.now(), aborted: cx.signal.aborted };
      return { is: args.on };
    },
  });
  const { bot } = await connected(t, { set_lamp: lamp });
  assert.deepEqual(await bot.call('set_lamp', { on: true }, { timeout: 5_000 }), { is: true });
  assert.deepEqual(seen.args, { on: true, level: 3 });
  assert.equal(seen.caller, 'agent');
  assert.ok(seen.left > 3_000 && seen.left <= 5_000, String(seen.left));
  assert.equal(seen.aborted, false);
});

test('assistant sees the tools with their schemas', async (t) => {
  const { bot } = await connected(t, { set_lamp: tool({ description: 'Switches the lamp', parameters: z.object({ on: z.boolean() }), execute: () => 1 }) });
  const [{ owner, tool: seen }] = bot.tools();
  assert.equal(owner, 'phone');
  assert.equal(seen.name, 'set_lamp');
  assert.deepEqual(seen.parameters.properties, { on: { type: 'boolean' } });
});

test('model gets tools that all APIs accept, and the tool its own keys', async (t) => {
  const parameters = {
    type: 'object',
    properties: { $filter: { type: 'string' }, in: { type: 'object', properties: { größe: { type: 'number' } } } },
    anyOf: [{ required: ['$filter'] }, { required: ['in'] }],
  };
  const { bot } = await connected(t, {
    no_arguments: tool({ description: 'Takes nothing', execute: () => 1 }),
    '3d_print': tool({ description: 'Prints', parameters, execute: (args) => args }),
  });
  const { tools, leftOut } = bot.modelTools();
  assert.deepEqual(tools.map(({ name, tool, owners }) => [name, tool, owners]), [
    ['_3d_print', '3d_print', ['phone']],
    ['no_arguments', 'no_arguments', ['phone']],
  ]);
  assert.deepEqual(tools[1].parameters, { type: 'object', properties: {} });
  assert.deepEqual(Object.keys(tools[0].parameters.properties), ['_filter', 'in']);
  assert.ok(!('anyOf' in tools[0].parameters) && tools[0].description.includes('must also match'));
  assert.deepEqual(leftOut, []);
  const own = { $filter: 'a', in: { größe: 1 } };
  assert.deepEqual(await bot.call('_3d_print', { _filter: 'a', in: { gr__e: 1 } }, { model: true }), own);
});

test('arguments that do not match are refused, and nothing runs', async (t) => {
  let runs = 0;
  const { bot } = await connected(t, {
    set_lamp: tool({ description: 'x', parameters: z.object({ on: z.boolean() }), execute: () => runs++ }),
    plain: tool({ description: 'x', parameters: { type: 'object' }, validate: (args) => 'a' in args || 'a is missing', execute: () => runs++ }),
  });
  await assert.rejects(bot.call('set_lamp', { on: 'yes' }), (error) => {
    assert.match(error.message, /^on: /);
    return refused(ToolFailed, { code: 'invalid_parameters', mayHaveRun: false })(error);
  });
  await assert.rejects(bot.call('plain', { b: 1 }), refused(ToolFailed, { code: 'invalid_parameters', message: 'a is missing' }));
  assert.equal(runs, 0);
  assert.deepEqual(await bot.call('plain', { a: 1 }), { value: 0 });
});

test('text of a ToolError is sent; that of any other exception stays local', async (t) => {
  const { app, bot } = await connected(t, {
    out: tool({
      description: 'x',
      execute: () => {
        throw new ToolError('the watch is out of range', { code: 'out_of_range', partial: { seen: 1 } });
      },
    }),
    broken: tool({
      description: 'x',
      execute: async () => {
        throw new Error('secret');
      },
    }),
  });
  await assert.rejects(bot.call('out'), refused(ToolFailed, { code: 'out_of_range', message: 'the watch is out of range', partial: { seen: 1 }, mayHaveRun: true }));
  const failed = next(app, 'toolFailed');
  await assert.rejects(bot.call('broken'), refused(ToolFailed, { code: 'execution_error', message: 'the tool failed' }));
  assert.match((await failed).cause, /secret/);
});

test('half of a surrogate pair becomes a replacement character', async (t) => {
  const half = 'smile \ud83d'; // of an emoji that was cut
  const throws = (error) => tool({ description: 'x', execute: () => { throw error(); } });
  const { app, bot } = await connected(t, {
    described: tool({ description: half, execute: () => 1 }),
    result: tool({ description: 'x', execute: () => ({ [half]: [half, '\ud83d\ude00', '\ude00\ud83d'] }) }),
    told: tool({ description: 'x', execute: (_, cx) => cx.progress({ message: half, content: [half] }) }),
    said: throws(() => new ToolError(half, { code: 'half', partial: [half] })),
    broken: throws(() => new Error(`${'x'.repeat(992)}😀😀😀`)), // its text is cut
    checked: tool({ description: 'x', validate: () => half, execute: () => 1 }),
  });
  const whole = 'smile \ufffd';
  assert.equal(bot.tools().find(({ tool }) => tool.name === 'described').tool.description, whole);
  assert.deepEqual(await bot.call('result', { [half]: half }), { [whole]: [whole, '😀', '\ufffd\ufffd'] });
  const told = [];
  await bot.call('told', {}, { onProgress: ({ message, content }) => message !== undefined && told.push([message, content]) });
  assert.deepEqual(told, [[whole, [whole]]]);
  await assert.rejects(bot.call('said'), refused(ToolFailed, { code: 'half', message: whole, partial: { value: [whole] } }));
  const failed = next(app, 'toolFailed');
  await assert.rejects(bot.call('broken'), refused(ToolFailed, { code: 'execution_error' }));
  assert.ok((await failed).cause.endsWith('x\ufffd'));
  await assert.rejects(bot.call('checked'), refused(ToolFailed, { code: 'invalid_parameters', message: whole }));
});

test('code of a ToolError is checked where it is written', () => {
  for (const code of [404, null, '', 'not found', 'ü', 'a'.repeat(65)]) {
    if (code === null) continue; // as if it were missing
    assert.throws(() => new ToolError('no such album', { code }), /must be a text of 1 to 64 letters/);
  }
  for (const code of ['timeout', 'cancelled', 'lost']) {
    assert.throws(() => new ToolError('the printer did not answer', { code }), new RegExp(`use another one, such as "printer_${code}"`));
  }
  assert.equal(new ToolError('no such album', { code: 'ENOENT' }).code, 'ENOENT');
});

test('tool that ends in any way has an outcome', async (t) => {
  const throws = (error) => tool({ description: 'x', execute: () => { throw error(); } });
  const { app, bot } = await connected(t, {
    number: throws(() => new ToolError('no such album', { code: 404 })),
    changed: throws(() => Object.assign(new ToolError('changed later'), { code: 404 })),
    said: throws(() => Object.defineProperty(new ToolError('x'), 'message', { value: { en: 'x' } })),
    mute: throws(() => Object.defineProperty(new Error('x'), 'message', { get: () => { throw new Error('no text'); } })),
    nothing: throws(() => Object.create(null)),
  });
  app.on('toolFailed', () => {});
  for (const name of ['number', 'changed', 'said', 'mute', 'nothing']) {
    await assert.rejects(bot.call(name), refused(ToolFailed, { code: 'execution_error' }), name);
  }
});

test('exception of a tool is printed at its own side unless somebody listens', async (t) => {
  const errors = t.mock.method(console, 'error', () => {});
  const broken = new Error('a secret of this page');
  const { app, bot } = await connected(t, {
    broken: tool({
      description: 'x',
      execute: () => {
        throw broken;
      },
    }),
    said: tool({
      description: 'x',
      execute: () => {
        throw new ToolError('the watch is out of range');
      },
    }),
  });
  await assert.rejects(bot.call('said'), refused(ToolFailed, {}));
  assert.equal(errors.mock.callCount(), 0, 'the caller reads the text of a ToolError');
  await assert.rejects(bot.call('broken'), refused(ToolFailed, { code: 'execution_error' }));
  assert.deepEqual(errors.mock.calls[0].arguments, ['toolbridge: the tool "broken" threw; the caller gets execution_error', broken]);
  app.on('toolFailed', () => {});
  await assert.rejects(bot.call('broken'), refused(ToolFailed, {}));
  assert.equal(errors.mock.callCount(), 1);
});

test('tool that blocks the script is reported at its own side', async (t) => {
  let passed = 0;
  const now = performance.now.bind(performance);
  t.mock.method(performance, 'now', () => now() + passed);
  const { app, bot } = await connected(t, {
    busy: tool({
      description: 'x',
      execute: async ({ later }) => {
        if (later) await new Promise((resolve) => setImmediate(resolve));
        passed += 6_000;
        return 1;
      },
    }),
  });
  for (const later of [false, true]) {
    const warned = next(app, 'warning');
    await bot.call('busy', { later });
    assert.match((await warned).message, /^the script was blocked for [56] s while a tool ran: after 5 s/);
  }
});

test('tool reads what the caller sent along, and nothing of the protocol', async (t) => {
  const { bot } = await connected(t, { read: tool({ description: 'x', execute: (_, { meta }) => meta }) });
  assert.deepEqual(await bot.call('read', {}, { meta: { trace: 'x' } }), { trace: 'x' });
  assert.deepEqual(await bot.call('read'), {});
});

test('results that JSON cannot hold are an execution_error', async (t) => {
  const cycle = {};
  cycle.self = cycle;
  const values = { nan: NaN, big: 1n, bytes: new Uint8Array(2), map: { at: [new Map()] }, cycle, fn: () => 1 };
  const tools = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, tool({ description: 'x', execute: () => value })]));
  const { app, bot } = await connected(t, tools);
  for (const name of Object.keys(values)) {
    const failed = next(app, 'toolFailed');
    await assert.rejects(bot.call(name), refused(ToolFailed, { code: 'execution_error' }), name);
    assert.match((await failed).cause, /^TypeError: /, name);
  }
});

test('results that JSON would write as nothing are an execution_error, which names the place and the class', async (t) => {
  class Hidden {
    #secret = 1;
    get secret() {
      return this.#secret;
    }
  }
  class Photo {
    name = 'a';
  }
  const values = {
    promise: [{ x: Promise.resolve(1) }, 'the result.x is a promise (await it), which JSON cannot hold'],
    error: [[new RangeError('far')], 'the result[0] is an error, RangeError (throw it, or return its message), which JSON cannot hold'],
    response: [{ a: { b: new Response('x') } }, 'the result.a.b is an object of the class Response, which JSON cannot hold'],
    map: [{ at: [new Map()] }, 'the result.at[0] is an object of the class Map, which JSON cannot hold'],
    hidden: [new Hidden(), 'the result is an object of the class Hidden, which JSON cannot hold'],
    date: [{ at: new Date(NaN) }, 'the result.at is an invalid date, which JSON cannot hold'],
    buffer: [[Buffer.from('hi')], 'the result[0] is binary data, which JSON cannot hold'],
    boxed: [{ n: Object(NaN) }, 'the result.n is NaN, which JSON cannot hold'],
  };
  const good = { plain: {}, bare: Object.create(null), other: runInNewContext('({})'), photo: new Photo(), date: new Date(0), box: new Number(1), args: (function () { return arguments; })() };
  const tools = Object.fromEntries(Object.entries(values).map(([name, [value]]) => [name, tool({ description: 'x', execute: () => value })]));
  const { app, bot } = await connected(t, { ...tools, good: tool({ description: 'x', execute: () => good }) });
  for (const [name, [, text]] of Object.entries(values)) {
    const failed = next(app, 'toolFailed');
    await assert.rejects(bot.call(name), refused(ToolFailed, { code: 'execution_error' }), name);
    assert.ok((await failed).cause.includes(text), (await failed).cause);
  }
  assert.deepEqual(await bot.call('good'), JSON.parse(JSON.stringify(good)));
  await assert.rejects(bot.call('good', { x: Promise.resolve(1) }), /^TypeError: arguments\.x is a promise/);
});

test('arguments that JSON cannot hold are a TypeError at once', async (t) => {
  const { bot, room } = await connected(t, { echo: tool({ description: 'x', execute: (args) => args }) });
  const sent = room.sent.length;
  const cycle = {};
  cycle.self = cycle;
  for (const [value, place] of [[NaN, 'arguments.a'], [[1, undefined], 'arguments.a[1]'], [10n, 'arguments.a'], [new ArrayBuffer(1), 'arguments.a'], [new Set(), 'arguments.a'], [() => 1, 'arguments.a']]) {
    await assert.rejects(bot.call('echo', { a: value }), (error) => error instanceof TypeError && error.message.startsWith(`${place} is `), place);
  }
  await assert.rejects(bot.call('echo', { a: cycle }), TypeError);
  await assert.rejects(bot.call('echo', [1]), TypeError);
  assert.equal(room.sent.length, sent);
  assert.deepEqual(await bot.call('echo', { a: undefined, b: new Date(0) }), { b: '1970-01-01T00:00:00.000Z' });
});

test('frames of 14 KB to 16 MiB cross in both directions, and one byte more is refused', async (t) => {
  const { bot } = await connected(t, {
    echo: tool({ description: 'x', execute: (args) => args }),
    length: tool({ description: 'x', execute: ({ text }) => text.length }),
    make: tool({ description: 'x', execute: ({ size }) => ({ text: 'r'.repeat(size) }) }),
  });
  for (const size of [14_000, 15_001, 1024 * 1024]) {
    const text = 'a'.repeat(size);
    assert.equal((await bot.call('echo', { text })).text, text);
  }
  // The limit is that of the whole frame: an error tells its size.
  const MAX = 16 * 1024 * 1024;
  const text = (size) => 'a'.repeat(size);
  const near = MAX - 20; // above the limit with the frame, but not alone
  const error = await bot.call('make', { size: near }).catch((error) => error);
  const result = near - (Number(/has (\d+) bytes/.exec(error.message)[1]) - MAX);
  assert.equal((await bot.call('make', { size: result })).text.length, result);
  for (const size of [result + 1, MAX]) {
    await assert.rejects(bot.call('make', { size }), refused(ToolFailed, { code: 'result_too_large', mayHaveRun: true }));
  }
  const tooLarge = await bot.call('echo', { text: text(near) }).catch((error) => error);
  const request = near - (tooLarge.size - MAX);
  // The time that is left is part of a request, and its number has 1 to 5 bytes.
  assert.equal((await bot.call('length', { text: text(request - 4) })).value, request - 4);
  await assert.rejects(bot.call('length', { text: text(request + 4) }), (error) => refused(TooLarge, { code: 'too_large', mayHaveRun: false, max: MAX })(error) && error.size > MAX);
  await assert.rejects(bot.call('echo', { text: text(MAX) }), refused(TooLarge, { code: 'too_large', mayHaveRun: false, max: MAX }));
});

test('stream that another participant has changed is not read, and is sent again', async (t) => {
  let runs = 0;
  const { app, bot, room } = await connected(t, { echo: tool({ description: 'x', execute: (args) => ((runs += 1), args) }) });
  const violations = [];
  for (const who of [app, bot]) who.on('violation', ({ by, what }) => violations.push([by, what]));
  const text = 'a'.repeat(40_000);
  for (const sender of ['agent', 'phone']) {
    let streams = 0;
    room.passes = ({ kind, from, attributes, bytes }) => {
      if (kind !== 'stream' || from !== sender) return true;
      assert.equal(attributes['toolbridge.sha256'], createHash('sha256').update(bytes).digest('hex'));
      streams += 1;
      if (streams === 1) bytes[20_000] ^= 1;
      return true;
    };
    assert.equal((await bot.call('echo', { text })).text, text);
    assert.equal(streams, 2, sender);
  }
  assert.equal(runs, 2);
  assert.deepEqual(violations, [
    ['agent', 'stream_changed'],
    ['phone', 'stream_changed'],
  ]);
});

test('values that no frame can hold are the one outcome of their call', async (t) => {
  const deep = (levels) => (levels === 0 ? 1 : [deep(levels - 1)]);
  const large = 'a'.repeat(16 * 1024 * 1024);
  const { app, bot, room } = await connected(t, {
    echo: tool({ description: 'x', execute: (args) => args }),
    deep: tool({ description: 'x', execute: () => ({ deep: deep(70) }) }),
    partial: tool({
      description: 'x',
      execute: () => {
        throw new ToolError('no', { code: 'too_dark', partial: { large } });
      },
    }),
    progress: tool({
      description: 'x',
      execute: (_, cx) => {
        cx.progress({ message: 'half', content: { large } });
        return { done: true };
      },
    }),
  });
  const warnings = [];
  app.on('warning', ({ message }) => warnings.push(message));
  const failed = next(app, 'toolFailed');
  await assert.rejects(bot.call('deep'), refused(ToolFailed, { code: 'execution_error', message: 'the tool failed' }));
  assert.match((await failed).cause, /nesting depth \d+ .* exceeds the limit of 64/);
  await assert.rejects(bot.call('partial'), refused(ToolFailed, { code: 'result_too_large', mayHaveRun: true }));
  const reports = [];
  assert.deepEqual(await bot.call('progress', {}, { onProgress: ({ message, content }) => reports.push([message, content]) }), { done: true });
  assert.deepEqual(reports.at(-1), ['half', undefined]);
  const sent = room.sent.length;
  for (const args of [{ deep: deep(70) }, { deep: deep(500) }]) {
    await assert.rejects(bot.call('echo', args), refused(InvalidArguments, { code: 'invalid_parameters', mayHaveRun: false }));
  }
  await assert.rejects(bot.call('echo', {}, { meta: { large } }), refused(TooLarge, { mayHaveRun: false, max: large.length }));
  assert.throws(() => bot.showView('v', { large }), /cannot be shown: \d+ bytes exceed the limit of 16777216/);
  // The acknowledgement of a result may still have waited.
  assert.deepEqual(room.sent.slice(sent).filter(({ bytes }) => bytes.length > 200), []);
  assert.deepEqual(warnings, []);
});

test('input that is malformed is an error with the name of its field, and the participant stays open', async (t) => {
  const { bot } = await connected(t, { echo: tool({ description: 'x', execute: (args) => args }) });
  assert.throws(() => bot.showView(1, {}), (error) => error.field === 'view' && error.message.startsWith('view: '));
  assert.deepEqual(await bot.call('echo', { a: 1 }), { a: 1 });
});

test('timeout names its limit and stops the tool', async (t) => {
  const stopped = later();
  const { bot } = await connected(t, {
    hang: tool({
      description: 'x',
      execute: (_, cx) => {
        cx.signal.addEventListener('abort', () => stopped.resolve(cx.signal.reason));
        return new Promise(() => {});
      },
    }),
  });
  const error = await bot.call('hang', {}, { timeout: 150 }).catch((error) => error);
  assert.equal(error.code, 'timeout');
  assert.equal(error.mayHaveRun, true);
  assert.ok(error instanceof CallTimeout || error instanceof ToolFailed);
  assert.match(error.message, /150 ms/);
  const reason = await stopped.promise;
  assert.ok(reason instanceof Stopped);
  assert.equal(reason.reason, 'deadline');
});

test('own limit of a tool ends it', async (t) => {
  const { bot } = await connected(t, { hang: tool({ description: 'x', timeout: 60, execute: () => new Promise(() => {}) }) });
  await assert.rejects(bot.call('hang'), (error) => error.code === 'timeout' && error.message === 'no result within 60 ms');
});

test('call that never began says so', async (t) => {
  const begun = later();
  const never = () => new Promise(() => {});
  const { bot } = await connected(t, { never: tool({ description: 'x', validate: () => (begun.resolve(), never()), execute: never }) });
  await assert.rejects(bot.call('never', {}, { timeout: 200 }), refused(Busy, { mayHaveRun: false }));
  const stop = new AbortController();
  const call = bot.call('never', {}, { timeout: 20_000, signal: stop.signal });
  await begun.promise;
  stop.abort();
  await assert.rejects(call, refused(Cancelled, {}));
});

test('call that finds no place says for how long it waited', async (t) => {
  const { bot } = await connected(t, { hang: tool({ description: 'x', execute: () => new Promise(() => {}) }) }, { client: { caps: { runningJobs: 1 } } });
  bot.call('hang').catch(() => undefined);
  await next(bot, 'progress');
  const message = 'the call had no place to run within its limit of 200 ms; nothing ran';
  await assert.rejects(bot.call('hang', {}, { timeout: 200 }), (error) => error instanceof Busy && error.message.endsWith(message));
});

test('own limit of a tool covers the check of its arguments', async (t) => {
  let runs = 0;
  const checked = later();
  const own = tool({ description: 'x', timeout: 50, validate: () => checked.promise, execute: () => (runs += 1) });
  const { bot } = await connected(t, { own });
  await assert.rejects(bot.call('own'), refused(Busy, { mayHaveRun: false }));
  checked.resolve(true);
  await new Promise(setImmediate);
  assert.equal(runs, 0);
});

/** An executor, a runner that records what it passes, and a tool for each entry. */
async function executor(tools) {
  const { Executor } = await import(new URL('../dist/esm/executor.js', import.meta.url));
  const passed = [];
  const runner = { pass: (fields) => passed.push(fields), start: () => true, until: () => 1_000 };
  const executor = new Executor(runner, () => {}, () => {});
  executor.tools = new Map(Object.entries(tools).map(([name, execute]) => [name, { core: {}, execute }]));
  const execute = (key, name) => executor.execute({ key, call: `c${key}`, caller: 'bot', tool: name, arguments: {}, endsAtMs: 0, limitMs: 5_000 });
  return { executor, runner, passed, execute };
}

test('first stop of a tool counts, and its place is reported free when its function has ended', async () => {
  const gate = later();
  let signal;
  const { executor: own, passed, execute } = await executor({ slow: (_, context) => ((signal = context.signal), gate.promise) });
  const ended = execute(1, 'slow');
  own.abort(1, 'caller');
  own.abort(1, 'leaving');
  assert.equal(signal.reason.reason, 'caller');
  await new Promise(setImmediate);
  assert.deepEqual(passed, []);
  gate.resolve();
  await ended;
  assert.deepEqual(passed, [{ type: 'settle', key: 1 }]);
});

test('job that has ended before its start does not run', async () => {
  let runs = 0;
  const { runner, passed, execute } = await executor({ count: () => (runs += 1) });
  runner.start = () => false;
  await execute(1, 'count');
  assert.equal(runs, 0);
  assert.deepEqual(passed, [{ type: 'settle', key: 1 }]);
});

test('function of an earlier session settles no job of the present one', async () => {
  const gates = [later(), later()];
  let progress;
  let runs = 0;
  const { executor: own, passed, execute } = await executor({ slow: (_, context) => ((progress ??= context.progress), gates[runs++].promise) });
  const earlier = execute(1, 'slow');
  own.abortAll('leaving');
  const present = execute(1, 'slow');
  progress('half');
  gates[0].resolve();
  await earlier;
  assert.deepEqual(passed, []);
  gates[1].resolve();
  await present;
  assert.deepEqual(passed, [{ type: 'settle', key: 1 }]);
});

test('aborted signal cancels the call, also at the client', async (t) => {
  const stopped = later();
  const begun = later();
  const { bot } = await connected(t, {
    hang: tool({
      description: 'x',
      execute: (_, cx) => {
        begun.resolve();
        cx.signal.addEventListener('abort', () => stopped.resolve(cx.signal.reason));
        return new Promise(() => {});
      },
    }),
  });
  const controller = new AbortController();
  const call = bot.call('hang', {}, { signal: controller.signal });
  await begun.promise;
  controller.abort(new Error('mind changed'));
  await assert.rejects(call, refused(Cancelled, { code: 'cancelled', mayHaveRun: true }));
  assert.equal((await stopped.promise).reason, 'caller');
  await assert.rejects(bot.call('hang', {}, { signal: AbortSignal.abort() }), refused(Cancelled, { mayHaveRun: false }));
});

test("signals like React Native's carry the reason of a stop, and end a wait", async (t) => {
  const { AbortController } = globalThis;
  t.after(() => (globalThis.AbortController = AbortController));
  globalThis.AbortController = class {
    signal = Object.assign(new EventTarget(), { aborted: false });
    abort() {
      this.signal.aborted = true;
      this.signal.dispatchEvent(new Event('abort'));
    }
  };
  const stopped = later();
  const hang = (_, { signal }) => new Promise(() => signal.addEventListener('abort', () => stopped.resolve(signal.reason)));
  const { bot } = await connected(t, { hang: tool({ description: 'x', execute: hang }) });
  await assert.rejects(bot.call('hang', {}, { timeout: 150 }), refused(CallTimeout, {}));
  assert.equal((await stopped.promise).reason, 'deadline');
  const controller = new globalThis.AbortController();
  controller.abort();
  await assert.rejects(bot.ready('phone', { signal: controller.signal }), { name: 'AbortError' });
});

test('progress reaches the caller: first that the tool has started', async (t) => {
  const { bot } = await connected(t, {
    copy: tool({
      description: 'x',
      execute: async (_, cx) => {
        cx.progress('1 of 2');
        cx.progress({ message: '2 of 2', content: { n: 2 } });
        await new Promise(setImmediate);
        return 'done';
      },
    }),
  });
  const steps = [];
  assert.deepEqual(await bot.call('copy', {}, { onProgress: (step) => steps.push(step) }), { value: 'done' });
  assert.equal(steps[0].status, 'in_progress');
  assert.ok(steps.some(({ message }) => message === '2 of 2'), JSON.stringify(steps));
});

test('callback that throws, at once or later, affects nobody else and is printed', async (t) => {
  const errors = t.mock.method(console, 'error', () => {});
  const { app, bot } = await connected(t, { lamp: tool({ description: 'x', execute: () => 1 }) });
  const wrong = new Error('wrong');
  const throws = () => {
    throw wrong;
  };
  app.on('settled', throws);
  app.on('settled', async () => throws());
  assert.deepEqual(await bot.call('lamp', {}, { onProgress: async () => throws() }), { value: 1 });
  assert.deepEqual(await bot.call('lamp', {}, { onProgress: throws }), { value: 1 });
  await new Promise(setImmediate);
  const printed = errors.mock.calls.map(({ arguments: [text, error] }) => (assert.equal(error, wrong), text));
  assert.deepEqual(printed.sort(), [
    ...Array(4).fill('toolbridge: a listener of "settled" threw'),
    ...Array(2).fill('toolbridge: onProgress of "lamp" threw'),
  ]);
  await assert.rejects(bot.call('lamp', {}, { onProgress: 'yes' }), /`onProgress` must be a function/);
});

test('consent is asked for destructive tools, and a refusal is permission_denied', async (t) => {
  const asked = [];
  let answer = true;
  let runs = 0;
  const remove = tool({ description: 'Deletes a file', parameters: z.object({ name: z.string() }), destructive: true, execute: () => ++runs });
  const { bot } = await connected(t, { remove }, {
    client: {
      consent: async (ask) => {
        asked.push(ask);
        return answer;
      },
    },
  });
  assert.deepEqual(await bot.call('remove', { name: 'a.txt' }), { value: 1 });
  assert.match(asked[0].text, /agent.*remove.*Deletes a file[^]*a\.txt/);
  assert.deepEqual(asked[0].arguments, { name: 'a.txt' });
  answer = false;
  await assert.rejects(bot.call('remove', { name: 'b.txt' }), refused(ToolFailed, { code: 'permission_denied', mayHaveRun: false }));
  // Arguments that do not match are refused before anybody is asked.
  await assert.rejects(bot.call('remove', { name: 1 }), refused(ToolFailed, { code: 'invalid_parameters' }));
  assert.equal(asked.length, 2);
  assert.equal(runs, 1);
});

test('question is withdrawn when the call is cancelled', async (t) => {
  const asked = later();
  const withdrawn = later();
  const { bot } = await connected(t, { remove: tool({ description: 'x', destructive: true, execute: () => 1 }) }, {
    client: {
      consent: ({ signal }) => {
        signal.addEventListener('abort', () => withdrawn.resolve());
        asked.resolve();
        return new Promise(() => {});
      },
    },
  });
  const controller = new AbortController();
  const call = bot.call('remove', {}, { signal: controller.signal });
  await asked.promise;
  controller.abort();
  await assert.rejects(call);
  await withdrawn.promise;
});

test('question shows all that runs, or is refused', async (t) => {
  const asked = [];
  const ran = [];
  const pay = tool({ description: 'Pays', destructive: true, execute: (args) => ran.push(args) });
  const consent = ({ text }) => {
    asked.push(text);
    return true;
  };
  const { app, bot } = await connected(t, { pay }, { client: { consent } });
  await bot.call('pay', { note: 'thank you '.repeat(1_000), to: 'mallory' });
  assert.ok(asked[0].startsWith('agent wants to run "pay": Pays\n{\n') && asked[0].endsWith('"to": "mallory"\n}'), asked[0]);
  await bot.call('pay', { to: 'alice\u202e moc.live@\u2066\u001b[2J\n' });
  assert.ok(asked[1].endsWith(String.raw`"to": "alice\u{202e} moc.live@\u{2066}\u001b[2J\n"` + '\n}'), asked[1]);
  const warning = next(app, 'warning');
  await assert.rejects(bot.call('pay', { note: 'thank you '.repeat(1_700), to: 'mallory' }), refused(ToolFailed, { code: 'permission_denied', mayHaveRun: false }));
  assert.match((await warning).message, /16 KiB/);
  assert.deepEqual([asked.length, ran.length], [2, 2]);
});

test('consent handler that throws counts as a refusal', async (t) => {
  const { app, bot } = await connected(t, { remove: tool({ description: 'x', destructive: true, execute: () => 1 }) }, {
    client: {
      consent: () => {
        throw new Error('no screen');
      },
    },
  });
  const warning = next(app, 'warning');
  await assert.rejects(bot.call('remove'), refused(ToolFailed, { code: 'permission_denied' }));
  assert.match((await warning).message, /no screen/);
});

test('64 calls run at once, and further ones wait', async (t) => {
  let running = 0;
  let most = 0;
  const release = later();
  const work = tool({
    description: 'x',
    execute: async () => {
      running += 1;
      most = Math.max(most, running);
      await release.promise;
      running -= 1;
    },
  });
  const caps = { openPerPeer: 80, callsPerSecond: 1_000 };
  const { bot } = await connected(t, { work }, { assistant: { caps }, client: { caps } });
  const all = later();
  let delivered = 0;
  bot.on('delivered', () => ++delivered === 70 && all.resolve());
  const calls = Array.from({ length: 70 }, (_, n) => bot.call('work', { n }));
  await all.promise;
  assert.equal(running, 64);
  release.resolve();
  assert.equal((await Promise.all(calls)).length, 70);
  assert.equal(most, 64);
});

test('unknown tool, and a call without a room', async (t) => {
  const { bot, agent } = await connected(t, {});
  await assert.rejects(bot.call('nothing', {}, { ownerWait: 1, timeout: 500 }), refused(UnknownTool, { code: 'unknown_tool', mayHaveRun: false }));
  agent.disconnect();
  await assert.rejects(bot.call('nothing'), refused(Closed, { mayHaveRun: false }));
});

test('timeout that is not allowed is refused in milliseconds', async (t) => {
  const { bot } = await connected(t, {});
  for (const timeout of [601_000, 0.5]) {
    const error = await bot.call('nothing', {}, { timeout }).catch((error) => error);
    assert.ok(error instanceof InvalidLimit && !error.mayHaveRun, String(error));
    assert.equal(error.message, `the timeout of ${timeout} ms is outside the range from 1 ms to 600000 ms`);
  }
});

test('client that closes loses its calls at once', async (t) => {
  const begun = later();
  const { app, bot } = await connected(t, {
    hang: tool({
      description: 'x',
      execute: () => {
        begun.resolve();
        return new Promise(() => {});
      },
    }),
  });
  const call = bot.call('hang');
  await begun.promise;
  const closed = next(app, 'closed');
  await app.close();
  assert.equal((await closed).reason.kind, 'closed');
  await atOnce(assert.rejects(call, refused(Lost, { owner: 'phone', mayHaveRun: true })));
});

test('client that closes ends calls that have not started as busy', async (t) => {
  const begun = later();
  const asked = later();
  const queued = later();
  let runs = 0;
  const hang = () => {
    runs += 1;
    begun.resolve();
    return new Promise(() => {});
  };
  const checked = later();
  const slow = z.object({}).refine(() => {
    checked.resolve();
    return new Promise(() => {}); // the arguments are still being checked
  });
  const { app, bot } = await connected(
    t,
    {
      hang: tool({ description: 'x', execute: hang }),
      check: tool({ description: 'x', parameters: slow, execute: hang }),
      remove: tool({ description: 'x', destructive: true, execute: hang }),
    },
    {
      client: {
        caps: { runningJobs: 2 },
        consent: () => {
          asked.resolve();
          return new Promise(() => {});
        },
      },
    },
  );
  let delivered = 0;
  bot.on('delivered', () => (delivered += 1) === 4 && queued.resolve());
  const started = bot.call('hang');
  await begun.promise;
  const checking = bot.call('check');
  await checked.promise;
  const question = bot.call('remove');
  await asked.promise;
  const waiting = bot.call('hang', { n: 2 });
  await queued.promise;
  const nothingRan = refused(Busy, { owner: 'phone', code: 'busy', mayHaveRun: false });
  const outcomes = [checking, question, waiting].map((call) => atOnce(assert.rejects(call, nothingRan)));
  outcomes.push(atOnce(assert.rejects(started, refused(Lost, { owner: 'phone', mayHaveRun: true }))));
  await app.close();
  await Promise.all(outcomes);
  assert.equal(runs, 1);
});

test('page that goes away says goodbye', async (t) => {
  const begun = later();
  const { phone, bot } = await connected(t, {
    hang: tool({
      description: 'x',
      execute: () => {
        begun.resolve();
        return new Promise(() => {});
      },
    }),
  });
  const call = bot.call('hang');
  await begun.promise;
  phone.leavePage();
  await atOnce(assert.rejects(call, refused(Lost, { owner: 'phone' })));
});

test('barge-in cancels, and a tool with report answers later', async (t) => {
  const begun = later();
  const second = later();
  const release = later();
  const { bot } = await connected(t, {
    hang: tool({
      description: 'x',
      execute: () => {
        begun.resolve();
        return new Promise(() => {});
      },
    }),
    slow: tool({
      description: 'x',
      bargeIn: 'report',
      execute: async () => {
        second.resolve();
        await release.promise;
        return 'late';
      },
    }),
  });
  const turn = bot.turn();
  const [hang, slow] = [turn.call('hang'), turn.call('slow')];
  await Promise.all([begun.promise, second.promise]);
  turn.bargeIn();
  await assert.rejects(hang, refused(Cancelled, { code: 'cancelled' }));
  await assert.rejects(slow, refused(Detached, { kind: 'detached' }));
  await assert.rejects(turn.call('slow'), (error) => error.kind === 'turn_over');
  const late = next(bot, 'lateResult');
  release.resolve();
  await late;
  const [result] = bot.lateResults();
  assert.deepEqual(result.value, { value: 'late' });
  assert.equal(result.tool, 'slow');
  assert.deepEqual(bot.lateResults(), []);
});

test('tools that change are registered again', async (t) => {
  const { app, bot } = await connected(t, { one: tool({ description: 'x', execute: () => 1 }) });
  const changed = next(bot, 'toolsChanged');
  app.offer({ two: tool({ description: 'x', execute: () => 2 }) });
  await changed;
  assert.deepEqual(bot.tools().map(({ tool }) => tool.name), ['two']);
  assert.deepEqual(await bot.call('two'), { value: 2 });
});

test("assistant's own tools run in its process", async (t) => {
  const { bot } = await connected(t, {}, { assistant: { tools: { clock: tool({ description: 'x', execute: (_, cx) => cx.caller }) } } });
  assert.deepEqual(await bot.call('clock'), { value: 'agent' });
});

test('several clients: a call names one, or the function chooses', async (t) => {
  const room = new MemoryRoom();
  const apps = ['phone', 'watch', 'car'].map((identity) => {
    const port = room.port(identity, { attributes: { 'toolbridge.role': 'client' } });
    return { identity, port, app: new Client(port, { tools: { where: tool({ description: 'x', execute: () => identity }) } }) };
  });
  const agent = room.port('agent', { attributes: { 'toolbridge.role': 'assistant' } });
  let chosen;
  let wrong;
  const bot = new Assistant(agent, { choose: (candidates, tool) => wrong ?? (chosen === undefined ? undefined : candidates.find((identity) => identity === chosen && tool === 'where')) });
  t.after(() => Promise.all([bot.close(), ...apps.map(({ app }) => app.close())]));
  for (const { port } of apps) port.connect();
  agent.connect();
  for (const { identity } of apps) await bot.ready(identity);
  for (const { identity } of apps) assert.deepEqual(await bot.call('where', {}, { to: identity }), { value: identity });
  const ambiguous = await bot.call('where').catch((error) => error);
  assert.ok(ambiguous instanceof Ambiguous, String(ambiguous));
  assert.deepEqual([...ambiguous.owners].sort(), ['car', 'phone', 'watch']);
  assert.equal(bot.whyNotOffered('nothing').kind, 'unknown_tool');
  chosen = 'watch';
  assert.deepEqual(await bot.call('where'), { value: 'watch' });
  for (wrong of ['fridge', { identity: 'watch' }, Promise.resolve('watch')]) {
    const warning = next(bot, 'warning');
    await assert.rejects(bot.call('where'), refused(Ambiguous, {}));
    assert.match((await warning).message, /the identity of no candidate; nobody is chosen/);
  }
});

test('answers of another participant are ignored', async (t) => {
  const begun = later();
  const release = later();
  const { room, bot } = await connected(t, {
    slow: tool({
      description: 'x',
      execute: async () => {
        begun.resolve();
        await release.promise;
        return 'true answer';
      },
    }),
    quick: tool({ description: 'x', execute: () => 'forged answer' }),
  });
  // A result of the client itself, which another participant sends again with the id of the open call.
  await bot.call('quick');
  const result = room.sent.filter(({ from, to }) => from === 'phone' && to.includes('agent')).find(({ bytes }) => Buffer.from(bytes).includes('forged answer'));
  assert.ok(result);
  const settled = [];
  const requested = next(bot, 'requested');
  const call = bot.call('slow');
  const { call: id } = await requested;
  await begun.promise;
  const old = /[\w-]{21}/.exec(Buffer.from(result.bytes).toString('latin1'))[0];
  const forged = Buffer.from(Buffer.from(result.bytes).toString('latin1').replace(old, id), 'latin1');
  const mallory = room.port('mallory');
  mallory.connect();
  bot.on('settled', (event) => settled.push(event));
  const violation = next(bot, 'violation', ({ by }) => by === 'mallory');
  await mallory.publish(new Uint8Array(forged), true, { topic: 'toolbridge', to: ['agent'] });
  await violation;
  assert.deepEqual(settled, []);
  release.resolve();
  assert.deepEqual(await call, { value: 'true answer' });
});
