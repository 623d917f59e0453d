// What the constructors refuse, and schemas.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';

import { Room as NodeRoom } from '@livekit/rtc-node';
import { toStandardJsonSchema } from '@valibot/to-json-schema';
import { type } from 'arktype';
import { Room } from 'livekit-client';
import { Assistant, Client, tool } from 'toolbridge';
import * as v from 'valibot';
import { z } from 'zod';
import { z as z3 } from 'zod3';

import { MemoryRoom, next } from './memory.mjs';

const any = (options) => tool({ description: 'x', execute: () => 1, ...options });
const port = () => new MemoryRoom().port('phone');

test('tool names that cannot be offered are refused with the name', () => {
  const refuses = (tools, text) => assert.throws(() => new Client(port(), { tools }), (error) => error instanceof TypeError && text.test(error.message), String(text));
  refuses([{ lamp: any() }, { lamp: any() }], /"lamp" is named twice/);
  refuses({ 'bridge.echo': any() }, /"bridge\.echo".*reserved/);
  refuses({ ['n'.repeat(65)]: any() }, /"n{65}".*65 characters; 64/);
  refuses({ 'a b': any() }, /"a b"/);
  refuses({ lamp: { execute: () => 1 } }, /"lamp" must be made by tool/);
  new Client(port(), { tools: { ['n'.repeat(64)]: any() } });
});

test('options that a tool cannot have are refused with the tool and what they may be', () => {
  const refuses = (options, text) => assert.throws(() => new Client(port(), { tools: { lamp: any(options) } }), (error) => error instanceof TypeError && error.message === `tool "lamp": ${text}`, text);
  refuses({ consent: 'sometimes' }, '`consent` is "sometimes"; it must be one of "never", "once_per_session", "always"');
  refuses({ bargeIn: 'stop' }, '`bargeIn` is "stop"; it must be one of "cancel", "finish", "report"');
  refuses({ timeout: -1 }, '`timeout` is -1; it must be a number of milliseconds above 0');
  refuses({ patience: '5' }, '`patience` is "5"; it must be a number of milliseconds above 0');
  refuses({ cancelGrace: NaN }, '`cancelGrace` is NaN; it must be a number of milliseconds of 0 or more');
  refuses({ destructive: 'yes' }, '`destructive` must be true or false, not string');
  refuses({ title: null }, '`title` must be a text, not null');
  assert.throws(() => new Client(port(), { tools: { lamp: any({ read_only: true }) } }), /tool "lamp": there is no option "read_only" \(did you mean "readOnly"\?\); the options are bargeIn, /);
  const client = new Client(port(), { tools: { lamp: any({ cancelGrace: 0, timeout: 0.5, consent: undefined, bargeIn: 'report' }) } });
  assert.throws(() => client.offer({ lamp: any({ consent: 'sometimes' }) }), /tool "lamp": `consent`/);
});

test('options of constructors and calls that are not there are refused', async () => {
  assert.throws(() => new Client(port(), { tool: {} }), /^TypeError: Client: there is no option "tool"; the options are assistant, caps, /);
  assert.throws(() => new Assistant(port(), { admit_only_roles: true }), /Assistant: .*\(did you mean "admitOnlyRoles"\?\)/);
  assert.throws(() => new Assistant(port(), { choose: 'frist' }), /`choose` is "frist"; it must be one of "nobody", "first", "last", "lastHeard"/);
  await assert.rejects(new Assistant(port()).call('lamp', {}, { owner: 'phone' }), /the call of "lamp": there is no option "owner"; the options are meta, /);
});

test('tools without names are refused', () => {
  for (const tools of [[any(), any()], any(), 'lamp']) {
    assert.throws(() => new Client(port(), { tools }), /`tools` must be an object of tools by their names/);
  }
});

test('events that are not there are refused, and the names are listed', () => {
  const client = new Client(port());
  assert.throws(() => client.on('bonud', () => {}), /there is no event "bonud"; the events are ambiguousAssistant, bound, /);
  assert.throws(() => client.on('tool_failed', () => {}), /\(did you mean "toolFailed"\?\)/);
  assert.throws(() => client.on('bound'), /the listener of "bound" must be a function/);
});

test('limits of a call that cannot be are refused in milliseconds', async () => {
  const bot = new Assistant(port());
  await assert.rejects(bot.call('lamp', {}, { timeout: 0 }), /`timeout` is 0; it must be a number of milliseconds above 0/);
  await assert.rejects(bot.call('lamp', {}, { timeout: '5' }), /`timeout` is "5"/);
  await assert.rejects(bot.call('lamp', {}, { ownerWait: -1 }), /`ownerWait` is -1; it must be a number of milliseconds of 0 or more/);
  await assert.rejects(bot.call('lamp', {}, { signal: {} }), /`signal` must be an AbortSignal/);
  await assert.rejects(bot.ready('phone', { signal: 'stop' }), /`signal` must be an AbortSignal/);
});

test('options of constructors that have a wrong value are refused', () => {
  for (const [options, text] of [
    [{ times: { graceMs: '5' } }, /`times.graceMs` is "5"/],
    [{ times: { gracePeriod: 5 } }, /`times`: there is no option "gracePeriod"/],
    [{ caps: { running_jobs: 1 } }, /`caps`: there is no option "running_jobs" \(did you mean "runningJobs"\?\)/],
    [{ caps: { runningJobs: 'many' } }, /`caps.runningJobs` must be a whole number of 0 or more, not string/],
    [{ caps: { runningJobs: -1 } }, /`caps.runningJobs` must be a whole number of 0 or more, not -1/],
    [{ version: 1 }, /`version` must be a text, not 1/],
    [{ fastLane: 'no' }, /`fastLane` must be true or false, not string/],
    [{ consent: 'yes' }, /`consent` must be a function, not string/],
    [{ assistant: 5 }, /`assistant` must be a text, not 5/],
  ]) {
    assert.throws(() => new Client(port(), options), (error) => error instanceof TypeError && text.test(error.message), String(text));
  }
  for (const [options, text] of [
    [{ clients: 'phone' }, /`clients` must be a list, not string/],
    [{ pins: { tool: 'a', owner: 'b' } }, /`pins` must be a list, not object/],
    [{ admit: 'phone' }, /`admit` must be a function, not string/],
    [{ allowStop: true }, /`allowStop` must be a function, not boolean/],
    [{ admitOnlyRoles: 'yes' }, /`admitOnlyRoles` must be true or false, not string/],
  ]) {
    assert.throws(() => new Assistant(port(), options), (error) => error instanceof TypeError && text.test(error.message), String(text));
  }
  new Client(port(), { times: { graceMs: undefined, ownerWaitMs: 0 }, caps: { runningJobs: undefined, count: 0 }, version: undefined });
});

test('failed constructor leaves the room free', () => {
  const room = port();
  assert.throws(() => new Client(room, { tools: { 'a b': any() } }));
  new Client(room);
  const taken = new Room();
  taken.registerByteStreamHandler('toolbridge.frame', () => {});
  assert.throws(() => new Client(taken), /has already been set/);
  taken.unregisterByteStreamHandler('toolbridge.frame');
  new Client(taken);
});

test('schemas that do not describe an object, or have no JSON Schema, are refused', () => {
  const refuses = (parameters, text) => assert.throws(() => new Client(port(), { tools: { lamp: any({ parameters }) } }), (error) => error instanceof TypeError && /"lamp"/.test(error.message) && text.test(error.message), String(text));
  refuses({ type: 'string' }, /must describe an object.*"string"/);
  refuses({ properties: {} }, /must describe an object/);
  refuses(z.string(), /must describe an object/);
  refuses(z.array(z.string()), /must describe an object/);
  refuses(z.object({ at: z.date() }), /cannot be written as JSON Schema/);
  refuses('object', /Standard Schema/);
  refuses(v.object({ on: v.boolean() }), /valibot.*toStandardJsonSchema/);
  refuses(z3.object({ on: z3.boolean() }), /this schema of zod has no JSON Schema; use zod 4\.2 or later, or pass a plain JSON Schema/);
  // What earlier versions of zod 3 have.
  refuses({ _def: {}, safeParse: () => {} }, /zod 4\.2/);
  refuses({ '~standard': { version: 1, vendor: 'zod', validate: () => {} } }, /zod 4\.2/);
});

test('zod, arktype and valibot describe and check the arguments', async (t) => {
  const schemas = {
    zod: z.object({ on: z.boolean(), level: z.number().optional() }),
    arktype: type({ on: 'boolean', 'level?': 'number' }),
    valibot: toStandardJsonSchema(v.object({ on: v.boolean(), level: v.optional(v.number()) })),
    plain: { type: 'object', properties: { on: { type: 'boolean' }, level: { type: 'number' } }, required: ['on'] },
  };
  const tools = Object.fromEntries(Object.entries(schemas).map(([name, parameters]) => [name, tool({ description: 'x', parameters, execute: (args) => args })]));
  const room = new MemoryRoom();
  const phone = room.port('phone', { attributes: { 'toolbridge.role': 'client' } });
  const agent = room.port('agent', { attributes: { 'toolbridge.role': 'assistant' } });
  const app = new Client(phone, { tools });
  const bot = new Assistant(agent);
  t.after(() => Promise.all([app.close(), bot.close()]));
  phone.connect();
  agent.connect();
  await bot.ready('phone');
  for (const { tool: seen } of bot.tools()) {
    assert.deepEqual(seen.parameters.required, ['on'], seen.name);
    assert.deepEqual(Object.keys(seen.parameters.properties).sort(), ['level', 'on'], seen.name);
  }
  for (const name of Object.keys(schemas)) {
    assert.deepEqual(await bot.call(name, { on: true }), { on: true }, name);
    const refused = await bot.call(name, { on: 1 }).catch((error) => error.code);
    assert.deepEqual(refused, name === 'plain' ? { on: 1 } : 'invalid_parameters', name);
  }
});

test('second participant on one room is refused until the first is closed', async () => {
  const room = port();
  const first = new Client(room);
  assert.throws(() => new Client(room), /already has a Client; close it/);
  assert.throws(() => new Assistant(room), /already has a Client/);
  const closing = first.close();
  const second = new Client(room);
  await closing;
  assert.throws(() => new Client(room), /already has/);
  await second.close();
});

test('rooms of both SDKs are accepted, also one that is not connected', async () => {
  for (const room of [new Room(), new NodeRoom()]) {
    const client = new Client(room, { tools: { lamp: any() } });
    assert.equal(client.isOpen, false);
    assert.throws(() => new Client(room), /already has a Client/);
    await client.close();
  }
});

test('SDKs that are too old are refused with both versions', () => {
  const room = new Room();
  Object.defineProperty(room, 'registerByteStreamHandler', { value: undefined });
  assert.throws(() => new Client(room), /livekit-client 2\.22\.0 or later is required.*an older version.*Room\.registerByteStreamHandler/);
  globalThis.LivekitClient = { version: '2.1.0' };
  try {
    assert.throws(() => new Client(room), /2\.22\.0 or later.*version 2\.1\.0/);
  } finally {
    delete globalThis.LivekitClient;
  }
  const node = new NodeRoom();
  Object.defineProperty(node, 'registerByteStreamHandler', { value: undefined });
  assert.throws(() => new Client(node), /@livekit\/rtc-node 0\.13\.34 or later/);
});

test('objects that are no rooms are refused', () => {
  for (const room of [undefined, null, {}, 'room']) assert.throws(() => new Client(room), /must be a Room/);
});

test('missing randomness throws with the name of a polyfill', () => {
  const own = Object.getOwnPropertyDescriptor(globalThis, 'crypto');
  Object.defineProperty(globalThis, 'crypto', { value: undefined, configurable: true, writable: true });
  const room = port();
  try {
    assert.throws(() => new Client(room), /crypto\.getRandomValues.*react-native-get-random-values/);
  } finally {
    Object.defineProperty(globalThis, 'crypto', own);
  }
  new Client(room); // the room is free
});

test('engine without WebAssembly gets plain JavaScript, with a warning', () => {
  const load = JSON.stringify(new URL('../dist/esm/load.js', import.meta.url));
  const program = `globalThis.WebAssembly = undefined; const { loadAny } = await import(${load}); console.log(typeof (await loadAny()).create)`;
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8' });
  assert.match(stderr, /WebAssembly cannot be used \(this engine has no WebAssembly\).*toolbridge\/js/);
  assert.equal(stdout.trim(), 'function', stderr);
});

test('every entry works as ES module and as CommonJS', async () => {
  const { createRequire } = await import('node:module');
  const require = createRequire(import.meta.url);
  for (const name of ['toolbridge', 'toolbridge/js', 'toolbridge/wasm']) {
    for (const found of [await import(name), require(name)]) {
      const room = port();
      const client = new found.Client(room, { tools: { lamp: found.tool({ description: 'x', execute: () => 1 }) } });
      const connected = next(client, 'connected');
      room.connect();
      assert.deepEqual(await connected, { identity: 'phone', room: 'room' });
      await client.close();
    }
  }
  assert.equal(typeof (await import('toolbridge/react')).useTools, 'function');
  assert.equal(typeof require('toolbridge/react').useTools, 'function');
});

test('import loads no core', async () => {
  const { execFileSync } = await import('node:child_process');
  const script = `
    const compile = WebAssembly.instantiate;
    let compiled = 0;
    WebAssembly.instantiate = (...args) => (compiled++, compile(...args));
    await import('toolbridge');
    await new Promise((resolve) => setTimeout(resolve, 0));
    console.log(compiled);`;
  const out = execFileSync(process.execPath, ['--input-type=module', '-e', script], { cwd: new URL('.', import.meta.url), encoding: 'utf8' });
  assert.equal(out.trim(), '0');
});

test('package, crates and toolbridge have one version', async () => {
  const { readFile } = await import('node:fs/promises');
  const read = (path) => readFile(new URL(path, import.meta.url), 'utf8');
  const { version } = JSON.parse(await read('../package.json'));
  for (const path of ['../../Cargo.toml', '../../../Cargo.toml']) {
    assert.equal(/^version = "(.*)"/m.exec(await read(path))[1], version, path);
  }
});

test('schema is written as JSON Schema once, however often its tool is made', () => {
  let times = 0;
  const described = { type: 'object', properties: { on: { type: 'boolean' } } };
  const input = () => {
    times += 1;
    return described;
  };
  const parameters = { '~standard': { version: 1, vendor: 'mine', validate: (value) => ({ value }), jsonSchema: { input } } };
  for (let rendering = 0; rendering < 3; rendering += 1) new Client(port(), { tools: { lamp: any({ parameters }) } });
  assert.equal(times, 1);
});
