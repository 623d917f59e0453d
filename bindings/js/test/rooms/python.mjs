// Participants of the package for Python, each in a process of its own: bindings/python/tests/rooms/participant.py.

import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

import { token, url } from './ends.mjs';

const program = fileURLToPath(new URL('../../../python/tests/rooms/participant.py', import.meta.url));

export const pythonClient = (t, room, identity) => participant(t, room, identity, 'client');

/** Returns the functions of caller.mjs. */
export async function pythonAssistant(t, room, clients) {
  const run = await participant(t, room, 'agent', 'assistant');
  for (const client of clients) await run('ready', client);
  const names = ['begin', 'result', 'progress', 'cancel', 'bargeIn', 'requested', 'violation'];
  return Object.fromEntries(names.map((name) => [name, (...args) => run(name, ...args)]));
}

/** Starts one that has joined. Returns a function that runs one of its commands. */
async function participant(t, room, identity, role) {
  const child = spawn(process.env.PYTHON, [program, role], { stdio: ['pipe', 'pipe', 'inherit'] });
  const waiting = new Map();
  let count = 0;
  createInterface({ input: child.stdout }).on('line', (line) => {
    const { id, value, error } = JSON.parse(line);
    const { resolve, reject } = waiting.get(id);
    waiting.delete(id);
    if (error === undefined) resolve(value);
    else reject(new Error(error));
  });
  const ended = new Promise((resolve) =>
    child.once('close', (status) => {
      for (const { reject } of waiting.values()) reject(new Error(`the participant ${identity} has ended with ${status}`));
      resolve();
    }),
  );
  t.after(async () => {
    child.stdin.end();
    await ended;
  });
  const run = (name, ...args) =>
    new Promise((resolve, reject) => {
      waiting.set(++count, { resolve, reject });
      child.stdin.write(`${JSON.stringify({ id: count, do: name, args })}\n`);
    });
  await run('join', url, token(room, identity, { role }));
  return run;
}
