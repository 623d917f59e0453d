// Runs the scripts of bindings/conformance, whose README says what they mean, in a room in memory.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { Assistant, CallError, Client, ToolError, tool } from 'toolbridge';

import { later, MemoryRoom } from './memory.mjs';

const SCRIPTS = JSON.parse(readFileSync(new URL('../../conformance/scripts.json', import.meta.url)));

/** What the author's functions and listeners have noticed, which steps wait for. */
class Log {
  #entries = [];
  #waiting = new Set();

  add(entry) {
    this.#entries.push(entry);
    for (const check of [...this.#waiting]) check();
  }

  filter(matches) {
    return this.#entries.filter(matches);
  }

  until(matches) {
    return new Promise((resolve) => {
      const check = () => {
        if (!this.#entries.some(matches)) return;
        this.#waiting.delete(check);
        resolve(this.#entries.find(matches));
      };
      this.#waiting.add(check);
      check();
    });
  }
}

class Run {
  constructor(t, script) {
    this.log = new Log();
    this.gates = new Map();
    this.calls = new Map();
    this.turns = new Map();
    const room = new MemoryRoom();
    const { tools, consent, caps } = script;
    const clients = script.clients ?? (tools === undefined ? {} : { phone: { tools, consent, caps } });
    this.participants = new Map();
    for (const [identity, { tools, consent, caps }] of Object.entries(clients)) {
      const port = room.port(identity, { attributes: { 'toolbridge.role': 'client' } });
      const ask = consent && ((question) => this.answer(consent, question));
      this.add(identity, port, new Client(port, { tools: this.tools(tools), caps, ...(ask && { consent: ask }) }));
    }
    const port = room.port('agent', { kind: 'agent', attributes: { 'toolbridge.role': 'assistant' } });
    const { tools: own = {}, ...options } = script.assistant ?? {};
    this.bot = new Assistant(port, { tools: this.tools(own), ...options });
    this.add('agent', port, this.bot);
    const isLate = (identity) => clients[identity]?.joinsLater;
    for (const [identity, { port }] of this.participants) if (!isLate(identity)) port.connect();
    this.clients = Object.entries(clients).filter(([identity, { tools }]) => Object.keys(tools).length > 0 && !isLate(identity));
    t.after(() => Promise.all([...this.participants.values()].map(({ own }) => own.close())));
  }

  add(identity, port, own) {
    this.participants.set(identity, { port, own });
    own.on('warning', ({ message }) => this.log.add({ warned: message, at: identity }));
    own.on('requested', ({ tool, by }) => this.log.add({ requested: tool, by, at: identity }));
    own.on('toolFailed', () => {});
  }

  tools(described) {
    return Object.fromEntries(Object.entries(described).map(([name, it]) => [name, this.tool(name, it)]));
  }

  tool(name, { does, timeoutMs, patienceMs, cancelGraceMs, ...options }) {
    const gate = later();
    this.gates.set(name, gate);
    const times = { ...(patienceMs && { patience: patienceMs }), ...(timeoutMs && { timeout: timeoutMs }), ...(cancelGraceMs && { cancelGrace: cancelGraceMs }) };
    return tool({ description: name, ...times, ...options, execute: (args, context) => this.execute(name, does, args, context) });
  }

  async execute(name, does, args, { signal, progress }) {
    this.log.add({ started: name });
    signal.addEventListener('abort', () => this.log.add({ stopped: name, reason: signal.reason.reason }));
    if (does.deaf) return new Promise(() => {});
    if (does.throw) throw new Error(does.throw);
    for (const report of does.report ?? []) {
      progress(report);
      await new Promise((resolve) => setTimeout(resolve, 150)); // ten reports a second are sent
    }
    if (does.wait) {
      const stopped = new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)));
      await Promise.race([this.gates.get(name).promise, stopped]);
    }
    if (does.fail) throw new ToolError(does.fail.message, does.fail);
    return does.return === 'arguments' ? args : does.return;
  }

  answer(consent, { text }) {
    this.log.add({ asked: text });
    if (consent === 'throw') throw new Error('no screen');
    return consent === 'wait' ? new Promise(() => {}) : consent === 'allow';
  }

  call({ call, tool, arguments: args = {}, turn, ...options }) {
    const steps = [];
    const { timeoutMs, ...rest } = options;
    const more = { ...rest, ...(timeoutMs && { timeout: timeoutMs }), onProgress: (step) => steps.push(step) };
    if (rest.ownerWaitMs) more.ownerWait = rest.ownerWaitMs;
    delete more.ownerWaitMs;
    const controller = new AbortController();
    const caller = turn === undefined ? this.bot : this.turn(turn);
    const ended = caller.call(tool, expand(args), { ...more, signal: controller.signal });
    const result = ended.then((value) => ({ value }), (error) => ({ error }));
    this.calls.set(call, { tool, result, controller, steps });
  }

  turn(name) {
    if (!this.turns.has(name)) this.turns.set(name, this.bot.turn());
    return this.turns.get(name);
  }

  async step(step) {
    if ('call' in step) return this.call(step);
    if ('result' in step) return this.result(step);
    if ('cancel' in step) return this.calls.get(step.cancel).controller.abort();
    if ('bargeIn' in step) return this.turn(step.bargeIn).bargeIn();
    if ('endTurn' in step) return this.turn(step.endTurn).end();
    if ('started' in step) return this.log.until(({ started }) => started === step.started);
    if ('open' in step) return this.gates.get(step.open).resolve();
    if ('stopped' in step) {
      const { reason } = await this.log.until(({ stopped }) => stopped === step.stopped);
      return assert.equal(reason, step.reason);
    }
    if ('arrived' in step) {
      const { tool } = this.calls.get(step.arrived);
      return this.log.until(({ requested, at }) => requested === tool && at !== 'agent');
    }
    if ('progress' in step) return assert.deepEqual(this.calls.get(step.progress).steps, step.is);
    if ('asked' in step) {
      if (step.asked === null) return assert.deepEqual(this.log.filter(({ asked }) => asked !== undefined), []);
      return this.log.until(({ asked }) => asked?.includes(step.asked));
    }
    if ('askedTimes' in step) return assert.equal(this.log.filter(({ asked }) => asked !== undefined).length, step.askedTimes);
    if ('ran' in step) return assert.deepEqual(this.log.filter(({ started }) => started).map(({ started }) => started), step.ran);
    if ('warned' in step) return this.log.until(({ warned, at }) => warned?.includes(step.warned) && at === step.at);
    if ('late' in step) return this.late(step);
    if ('join' in step) return this.participants.get(step.join).port.connect();
    if ('lose' in step) return this.participants.get(step.lose).port.lose();
    if ('restore' in step) return this.participants.get(step.restore).port.restore(step);
    if ('disconnect' in step) return this.participants.get(step.disconnect).port.disconnect({ kind: step.why });
    if ('close' in step) return this.participants.get(step.close).own.close();
    if ('offer' in step) return this.participants.get(step.at).own.offer(this.tools(step.offer));
    throw new Error(`unknown step ${JSON.stringify(step)}`);
  }

  async result({ result: id, value, error: expected }) {
    const { value: found, error } = await this.calls.get(id).result;
    if (expected === undefined) return assert.deepEqual(error ?? found, expand(value));
    this.compare(error, expected, found);
  }

  compare(error, expected, found) {
    assert.ok(error instanceof CallError, `${JSON.stringify(found)} ${error}`);
    for (const [key, it] of Object.entries(expected)) assert.deepEqual(error[key], it, `${key}: ${error.message}`);
  }

  async late({ late, value, error }) {
    for (;;) {
      const found = this.bot.lateResults().find(({ tool }) => tool === late);
      if (found !== undefined) return error === undefined ? assert.deepEqual(found.value, value) : this.compare(found.error, error, found.value);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }
}

/** `{"repeat": "x", "times": 3}` is `xxx`. */
function expand(value) {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value;
  if ('repeat' in value) return value.repeat.repeat(value.times);
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, expand(item)]));
}

for (const script of SCRIPTS) {
  test(`conformance: ${script.name}`, async (t) => {
    const run = new Run(t, script);
    for (const [identity] of run.clients) await run.bot.ready(identity);
    for (const step of script.steps) await run.step(step);
  });
}
