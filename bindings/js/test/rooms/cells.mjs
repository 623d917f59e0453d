// The cells of the matrix: each kind of assistant with each kind of client, behind one interface.

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

import { Assistant, Client } from 'toolbridge';
import * as toolbridgeModule from 'toolbridge';

import { makeCaller, measured, offered } from './caller.mjs';
import { assistant, freshRoom, needs, openPage, Room, token, toolbridge, url } from './ends.mjs';
import { pythonAssistant, pythonClient } from './python.mjs';
import { terminalClient } from './terminal-client.mjs';
import { consent, makeTools } from './tools.mjs';

/** The pairs. A client over the command line has programs and an MCP server as tools, the others those of tools.mjs. */
const PAIRS = {
  js: [
    ['Rust', 'Node'],
    ['Rust', 'Chromium'],
    ['Node', 'Rust'],
    ['Node', 'Node'],
    ['Node', 'Chromium'],
    ['Chromium', 'Rust'],
    ['Chromium', 'Node'],
    ['Chromium', 'Chromium'],
  ],
  python: [
    ['Rust', 'Python'],
    ['Node', 'Python'],
    ['Chromium', 'Python'],
    ['Python', 'Python'],
    ['Python', 'Rust'],
    ['Python', 'Node'],
    ['Python', 'Chromium'],
  ],
};

/** Those of one package: TOOLBRIDGE_PAIRS is `js` (default) or `python`. */
export const CELLS = PAIRS[process.env.TOOLBRIDGE_PAIRS ?? 'js'].map(([caller, owner]) => ({ name: `${caller} → ${owner}`, caller, owner }));

const PARTS = { Chromium: 'chromium', Python: 'python' };

/** The options of a test of a cell. */
export const optionsOf = ({ caller, owner }, timeout) => ({
  ...needs('server', 'toolbridge', ...[PARTS[caller], PARTS[owner]].filter(Boolean), ...(owner === 'Rust' ? ['script'] : [])),
  timeout,
});

const OPTIONS = { autoSubscribe: false, dynacast: false };

/** A room of a cell with a recorder, its clients and its assistant. */
export async function openCell(t, { caller, owner }, clients = ['phone']) {
  const room = freshRoom();
  const recording = await record(t, room);
  for (const identity of clients) await CLIENTS[owner](t, room, identity);
  const bot = await ASSISTANTS[caller](t, room, clients);
  let count = 0;
  /** Starts a call. */
  const begin = async (tool, args, options) => {
    const name = `call ${++count}`;
    await bot.begin(name, tool, args, options);
    return {
      result: () => bot.result(name),
      progress: (message) => bot.progress(name, message),
      cancel: () => bot.cancel(name),
      bargeIn: () => bot.bargeIn(name),
    };
  };
  const call = async (...args) => (await begin(...args)).result();
  return { room, recording, begin, call, requested: bot.requested, violation: bot.violation };
}

/** `toolbridge record` in a room. `check` ends it and returns what `toolbridge check` finds, and the recorded calls. */
async function record(t, room) {
  const folder = mkdtempSync(join(tmpdir(), 'toolbridge-matrix-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'room.mcap');
  const child = spawn(process.env.TOOLBRIDGE, ['record', file, '--room', room], { stdio: ['ignore', 'pipe', 'pipe'] });
  const ended = new Promise((resolve) => child.once('close', resolve));
  t.after(() => child.kill('SIGKILL'));
  let printed = '';
  await new Promise((resolve, reject) => {
    for (const output of [child.stdout, child.stderr]) {
      createInterface({ input: output }).on('line', (line) => {
        printed += `${line}\n`;
        if (line.startsWith('recording ')) resolve();
      });
    }
    child.once('close', () => reject(new Error(printed)));
  });
  return {
    check: async () => {
      child.kill('SIGINT');
      const status = await ended;
      if (status !== 0) throw new Error(`toolbridge record ended with ${status}: ${printed}`);
      const [checked, calls] = [await toolbridge('check', file), await toolbridge('calls', file, '--json')];
      return { status: checked.status, report: checked.out + checked.err, calls: JSON.parse(calls.out) };
    },
  };
}

const CLIENTS = {
  Python: pythonClient,
  Rust: terminalClient,
  Node: async (t, room, identity) => {
    const { tools, note } = makeTools(toolbridgeModule);
    const livekit = new Room();
    const client = new Client(livekit, { tools, consent: (ask) => consent(ask, note) });
    t.after(async () => {
      await client.close();
      await livekit.disconnect();
    });
    await livekit.connect(url, token(room, identity, { role: 'client' }), OPTIONS);
  },
  Chromium: async (t, room, identity) => {
    const page = await openPage(t);
    await page.evaluate((options) => globalThis.startClient(options), { url, token: token(room, identity, { role: 'client' }) });
  },
};

const ASSISTANTS = {
  Python: pythonAssistant,
  Rust: async (t, room, clients) => {
    const program = await assistant(t, room, clients[0]);
    for (const client of clients) await program.line((line) => line.event === 'ready' && line.owner === client);
    const calls = new Map();
    return {
      begin: (name, tool, args, { fill, measure, turn, to, timeout, ownerWait } = {}) => {
        const more = { to, timeoutMs: timeout, ownerWaitMs: ownerWait, turn: turn ? name : undefined };
        calls.set(name, { ...program.begin(tool, fill === undefined ? args : { text: 'a'.repeat(fill) }, more), measure });
      },
      result: async (name) => {
        const { result, measure } = calls.get(name);
        const { value, error } = await result;
        return error === undefined ? { value: measure ? measured(value) : value } : { error };
      },
      progress: (name, message) => program.line((line) => line.type === 'progress' && line.id === calls.get(name).id && line.message === message),
      cancel: (name) => program.say({ type: 'cancel', id: calls.get(name).id }),
      bargeIn: (name) => program.say({ type: 'barge_in', turn: name }),
      requested: () => program.lines.findLast((line) => line.event === 'requested')?.call,
      violation: (by) => program.line((line) => line.event === 'violation' && line.by === by),
    };
  },
  Node: async (t, room, clients) => {
    const livekit = new Room();
    const bot = new Assistant(livekit);
    t.after(async () => {
      await bot.close();
      await livekit.disconnect();
    });
    const caller = makeCaller(bot);
    await livekit.connect(url, token(room, 'agent', { role: 'assistant' }), OPTIONS);
    await offered(bot, clients);
    return caller;
  },
  Chromium: async (t, room, clients) => {
    const page = await openPage(t);
    await page.evaluate((options) => globalThis.startAssistant(options), { url, token: token(room, 'agent', { role: 'assistant' }), clients });
    const names = ['begin', 'result', 'progress', 'cancel', 'bargeIn', 'requested', 'violation'];
    const inPage = (name) => (...args) => page.evaluate(([name, args]) => globalThis.caller[name](...args), [name, args]);
    return Object.fromEntries(names.map((name) => [name, inPage(name)]));
  },
};
