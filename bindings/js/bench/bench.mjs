// Calls to a page, over toolbridge and over LiveKit's `perform_rpc` from Python in the same room, in turns, with the same payloads.
// `scripts/bench bindings` starts it, and says what it measures.

import { spawn } from 'node:child_process';
import { connect } from 'node:net';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { Program, closeBrowser, openPage, token, url } from '../test/rooms/ends.mjs';

const { PYTHON, PAGE_CALLER, ROUNDS = '5', CALLS = '1000', BYTES = '220', LOSS, TOOLBRIDGE_NETWORK } = process.env;
const ROWS = { rust: 'Rust assistant', program: 'toolbridge assistant', room: 'Python over Room', join: 'Python by join' };
/** The calls that are open while the page joins again. */
const OPEN = 20;

const NEAR = ['ip', 'netns', 'exec', 'tb-near'];

const cleanups = [];
const context = { after: (cleanup) => cleanups.unshift(cleanup), diagnostic: (text) => process.stderr.write(text) };

const quantile = (values, part) => [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * part))];
const median = (values) => quantile(values, 0.5);

/** A caller in Python or Rust, on the far side of the network if there is one. */
class Caller {
  static async start(how, name, identity, rights) {
    const python = [PYTHON, fileURLToPath(new URL('../../python/bench/caller.py', import.meta.url)), how];
    const command = [...(TOOLBRIDGE_NETWORK ? NEAR : []), ...(how === 'rust' ? [PAGE_CALLER] : python)];
    const child = spawn(command[0], command.slice(1), {
      env: { ...process.env, LIVEKIT_TOKEN: token(name, identity, rights) },
      stdio: ['pipe', 'pipe', 'inherit'],
    });
    const caller = new Caller();
    caller.child = child;
    caller.lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    await caller.line();
    return caller;
  }

  async line() {
    const { value, done } = await this.lines.next();
    if (done) throw new Error('a caller has ended');
    return JSON.parse(value);
  }

  async say(line) {
    this.child.stdin.write(`${line}\n`);
    return this.line();
  }

  run() {
    return this.say(`${CALLS} ${BYTES}`);
  }
}

/** The command line's assistant, through its JSON lines, whose pipes are in the figures. */
async function program(name) {
  const assistant = new Program(context, 'assistant', '--room', name, '--identity', 'agent', '--client', 'phone');
  await assistant.line((line) => line.event === 'ready' && line.owner === 'phone');
  const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
  const data = Array.from({ length: Number(BYTES) }, () => letters[Math.floor(Math.random() * letters.length)]).join('');
  return {
    async run() {
      const ms = [];
      for (let n = 0; n < Number(CALLS); n += 1) {
        const begun = performance.now();
        const { error } = await assistant.call('echo', { data }, { to: 'phone' });
        ms.push(performance.now() - begun);
        if (error !== undefined) throw new Error(`a call failed: ${error.message}`);
        assistant.lines.length = 0;
      }
      return { ms };
    },
  };
}

async function set(network) {
  const socket = connect(TOOLBRIDGE_NETWORK);
  const [answer] = await new Promise((resolve, reject) => {
    socket.once('error', reject);
    createInterface({ input: socket }).once('line', (line) => resolve([line]));
    socket.write(`${JSON.stringify(network)}\n`);
  });
  socket.end();
  if (answer !== 'ok') throw new Error(`the network says ${answer}`);
}

async function measureFirst() {
  const page = await openPage(context);
  const first = await page.evaluate(async ({ url, token }) => {
    const begun = performance.now();
    const room = new livekit.Room();
    const probe = new toolbridge.Client(room, {});
    const ready = new Promise((resolve) => probe.on('connected', resolve));
    const made = performance.now();
    await room.connect(url, token, { autoSubscribe: false });
    const joined = performance.now();
    await ready;
    const open = performance.now();
    await probe.close();
    await room.disconnect();
    return { constructor: made - begun, afterConnect: open - joined };
  }, { url, token: token('probe', 'probe', { role: 'client' }) });
  console.log(`first Client: constructor ${first.constructor.toFixed(1)} ms; open ${first.afterConnect.toFixed(1)} ms after connect`);
}

async function measure(row) {
  const name = `bench-${row}`;
  const page = await openPage(context);
  await page.evaluate((options) => globalThis.startClient(options), {
    url,
    token: token(name, 'phone', { role: 'client' }),
    options: { caps: { callsPerSecond: 100_000 } },
  });
  await page.evaluate(() => globalThis.room.registerRpcMethod('echo', async ({ payload }) => payload));
  const callers = {
    own: row === 'program' ? await program(name) : await Caller.start(row, name, 'agent', { role: 'assistant' }),
    rpc: await Caller.start('rpc', name, 'python', {}),
  };
  if (TOOLBRIDGE_NETWORK) {
    await set({ class: 'udp', loss: Number(LOSS) / 100 });
    await set({ class: 'all', delay: 0.021 });
  }
  for (const caller of Object.values(callers)) await caller.run(); // before the first round
  const figures = { own: { p50: [], p99: [], cpu: [] }, rpc: { p50: [], p99: [], cpu: [] } };
  for (let round = 0; round < Number(ROUNDS); round += 1) {
    for (const [who, caller] of Object.entries(callers)) {
      const { ms, cpu } = await caller.run();
      figures[who].p50.push(quantile(ms, 0.5));
      figures[who].p99.push(quantile(ms, 0.99));
      if (cpu !== undefined) figures[who].cpu.push(cpu);
    }
  }
  if (TOOLBRIDGE_NETWORK) await set({ class: 'all', loss: 0, delay: 0 });
  for (const what of ['p50', 'p99', 'cpu']) {
    if (figures.own[what].length === 0) continue;
    const [own, other] = [median(figures.own[what]), median(figures.rpc[what])];
    const label = what === 'cpu' ? 'CPU of the process per call' : what;
    console.log(`${ROWS[row]}, ${label}: ${own.toFixed(2)} ms, perform_rpc ${other.toFixed(2)} ms, ratio ${(own / other).toFixed(2)}`);
  }
  for (const caller of Object.values(callers)) caller.child?.stdin.end();
  for (const cleanup of cleanups.splice(0)) await cleanup();
}

/** How many open calls get their result if the page joins the room again meanwhile. */
async function rejoin(row) {
  const name = `rejoin-${row}`;
  const page = await openPage(context);
  await page.evaluate((options) => globalThis.startClient(options), { url, token: token(name, 'phone', { role: 'client' }) });
  const rpc = row === 'rpc';
  await page.evaluate(() => {
    globalThis.open = 0;
    globalThis.room.registerRpcMethod('until', async () => {
      globalThis.open += 1;
      await globalThis.until('go');
      return '{}';
    });
  });
  const caller = await Caller.start(row, name, rpc ? 'python' : 'agent', rpc ? {} : { role: 'assistant' });
  const result = caller.say(`open ${OPEN}`);
  await page.waitForFunction(([count, rpc]) => (rpc ? globalThis.open : globalThis.client.stats().jobs) === count, [OPEN, rpc]);
  await page.evaluate(async () => {
    const reconnected = new Promise((resolve) => globalThis.room.once('reconnected', resolve));
    await globalThis.room.simulateScenario('full-reconnect');
    await reconnected;
    globalThis.note('go');
  });
  const { results, failures } = await result;
  console.log(`page joins again, ${ROWS[row] ?? 'perform_rpc'}: ${results} of ${OPEN} open calls got a result${failures.map((it) => `; ${it}`).join('')}`);
  caller.child.stdin.end();
  for (const cleanup of cleanups.splice(0)) await cleanup();
}

if (process.argv[2] === 'rejoin') {
  for (const row of ['rpc', 'room', 'join']) await rejoin(row);
  await closeBrowser();
  process.exit(0);
}

const chosen = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(ROWS);
if (!TOOLBRIDGE_NETWORK) await measureFirst();
for (const row of chosen) {
  // Not through the network: the command line runs on this side.
  if (!TOOLBRIDGE_NETWORK || row !== 'program') await measure(row);
}
await closeBrowser();
