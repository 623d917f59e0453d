// Runs the scripts of bindings/conformance, whose README says what they mean, in a room in memory. It runs in every engine.

import { Assistant, CallError, Client, ToolError, tool } from 'toolbridge';

import { later, MemoryRoom } from './memory.mjs';

/** The time limit of a script, in milliseconds. The longest one takes a second. */
const LIMIT = 30_000;

/** Runs the scripts, one after the other. Returns a line for each that fails: its name, and why. */
export async function failures(scripts) {
  const failed = [];
  for (const script of scripts) {
    try {
      await run(script);
    } catch (error) {
      failed.push(`${script.name}: ${error.message}`);
    }
  }
  return failed;
}

/** Runs a script. Throws if it fails. */
export async function run(script) {
  const started = new Run(script);
  const limit = later();
  const timer = setTimeout(() => limit.reject(new Error(`not over after ${LIMIT} ms`)), LIMIT);
  try {
    await Promise.race([started.all(script.steps), limit.promise]);
  } catch (error) {
    throw new Error(`${error} in the step ${JSON.stringify(started.at)}`, { cause: error });
  } finally {
    clearTimeout(timer);
    await started.close();
  }
}

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
  constructor(script) {
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
  }

  async all(steps) {
    this.at = 'ready';
    for (const [identity] of this.clients) await this.bot.ready(identity);
    for (const step of steps) {
      this.at = step;
      await this.step(step);
    }
  }

  async close() {
    await Promise.all([...this.participants.values()].map(({ own }) => own.close()));
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
      return equal(reason, step.reason);
    }
    if ('arrived' in step) {
      const { tool } = this.calls.get(step.arrived);
      return this.log.until(({ requested, at }) => requested === tool && at !== 'agent');
    }
    if ('progress' in step) return equal(this.calls.get(step.progress).steps, step.is);
    if ('asked' in step) {
      if (step.asked === null) return equal(this.log.filter(({ asked }) => asked !== undefined), []);
      return this.log.until(({ asked }) => asked?.includes(step.asked));
    }
    if ('askedTimes' in step) return equal(this.log.filter(({ asked }) => asked !== undefined).length, step.askedTimes);
    if ('ran' in step) return equal(this.log.filter(({ started }) => started).map(({ started }) => started), step.ran);
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
    if (expected !== undefined) return this.compare(error, expected, found);
    if (error !== undefined) throw error;
    equal(found, expand(value));
  }

  compare(error, expected, found) {
    if (!(error instanceof CallError)) throw error ?? new Error(`no error, but ${JSON.stringify(found)}`);
    equal(Object.fromEntries(Object.keys(expected).map((key) => [key, error[key]])), expected);
  }

  async late({ late, value, error }) {
    for (;;) {
      const found = this.bot.lateResults().find(({ tool }) => tool === late);
      if (found !== undefined) return error === undefined ? equal(found.value, value) : this.compare(found.error, error, found.value);
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

/** Throws if these are not the same JSON. */
function equal(found, expected) {
  if (!isEqual(found, expected)) throw new Error(`found ${JSON.stringify(found)}, not ${JSON.stringify(expected)}`);
}

function isEqual(a, b) {
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return a === b;
  const keys = Object.keys(a);
  return Array.isArray(a) === Array.isArray(b) && keys.length === Object.keys(b).length && keys.every((key) => key in b && isEqual(a[key], b[key]));
}
