// Calls of 220 B from a native assistant to a page over toolbridge, and LiveKit's RPC from Python to the same page, in turns.
// `scripts/bench-bindings` starts it. The first goes through the JSON lines of `toolbridge assistant`, whose pipes are in the figures.

import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { Program, closeBrowser, openPage, token, url } from '../test/rooms/ends.mjs';

const { PYTHON, ROUNDS = '5', CALLS = '200' } = process.env;
const BYTES = 220;
const ROOM = 'bench';

const cleanups = [];
const context = { after: (cleanup) => cleanups.unshift(cleanup), diagnostic: (text) => process.stderr.write(text) };

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
}, { url, token: token(ROOM, 'probe', { role: 'client' }) });
await page.evaluate((options) => globalThis.startClient(options), { url, token: token(ROOM, 'phone', { role: 'client' }), options: { caps: { calls_per_second: 100_000 } } });
await page.evaluate(() => globalThis.room.registerRpcMethod('echo', async ({ payload }) => payload));

const assistant = new Program(context, 'assistant', '--room', ROOM, '--identity', 'agent', '--client', 'phone');
await assistant.line((line) => line.event === 'ready' && line.owner === 'phone');
const python = spawn(PYTHON, [fileURLToPath(new URL('../../../tests/peers/rpc_bench.py', import.meta.url)), 'caller'], {
  env: { ...process.env, LIVEKIT_TOKEN: token(ROOM, 'python') },
  stdio: ['pipe', 'pipe', 'inherit'],
});
const lines = createInterface({ input: python.stdout })[Symbol.asyncIterator]();
await lines.next();

async function overToolbridge() {
  const data = 'x'.repeat(BYTES);
  const ms = [];
  for (let n = 0; n < Number(CALLS); n += 1) {
    const begun = performance.now();
    const { ok, error } = await assistant.call('echo', { data }, { to: 'phone' });
    ms.push(performance.now() - begun);
    if (!ok) throw new Error(`a call failed: ${error.message}`);
    assistant.lines.length = 0;
  }
  return ms;
}

async function overRpc() {
  python.stdin.write(`${CALLS} ${BYTES} 1 64\n`);
  return JSON.parse((await lines.next()).value).ms;
}

const quantile = (values, part) => [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * part))];
const median = (values) => quantile(values, 0.5);
await overToolbridge();
await overRpc();
const figures = { toolbridge: { p50: [], p99: [] }, rpc: { p50: [], p99: [] } };
for (let round = 0; round < Number(ROUNDS); round += 1) {
  for (const [name, run] of [['toolbridge', overToolbridge], ['rpc', overRpc]]) {
    const ms = await run();
    figures[name].p50.push(quantile(ms, 0.5));
    figures[name].p99.push(quantile(ms, 0.99));
  }
}
for (const name of ['p50', 'p99']) {
  const [own, other] = [median(figures.toolbridge[name]), median(figures.rpc[name])];
  console.log(`${name}: toolbridge ${own.toFixed(2)} ms, perform_rpc ${other.toFixed(2)} ms, ratio ${(own / other).toFixed(2)}`);
}
console.log(`first Client: constructor ${first.constructor.toFixed(1)} ms; open ${first.afterConnect.toFixed(1)} ms after connect`);
python.stdin.end();
for (const cleanup of cleanups) await cleanup();
await closeBrowser();
