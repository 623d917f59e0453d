// A page whose tools an assistant in this terminal calls: `TOOLBRIDGE=… node demo.mjs [--port PORT]`. `scripts/bindings demo`
// starts it. It runs an embedded server (`toolbridge dev`), serves the page on loopback, makes calls when the page has joined,
// and then those that you type. It ends at Ctrl-C, and when standard input ends.

import { execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { parseArgs, promisify } from 'node:util';

import { build } from 'esbuild';

import { serverUrl } from './server-url.mjs';

const { values } = parseArgs({ options: { port: { type: 'string', default: '0' } } });
const { TOOLBRIDGE } = process.env;
if (!TOOLBRIDGE) {
  console.error('TOOLBRIDGE must be the path of the program toolbridge; scripts/bindings demo sets it');
  process.exit(2);
}

const ROOM = 'demo';
const PAGE = 'page';

/** The calls that are made when the page has joined. */
const CALLS = [
  ['set_lamp', { on: true }],
  ['get_battery', {}],
  ['notify', { text: 'The lamp is on.' }],
];

/** How long a person may take to answer, in milliseconds. */
const TIMEOUT = 120_000;

const here = fileURLToPath(new URL('.', import.meta.url));

/** The page and its scripts, by path. */
async function bundle() {
  const { outputFiles } = await build({
    absWorkingDir: here,
    entryPoints: ['lamp.ts'],
    bundle: true,
    splitting: true, // the translation to plain JavaScript is loaded only where it is needed
    format: 'esm',
    target: 'es2022',
    minify: true,
    write: false,
    outdir: here,
  });
  const files = new Map(outputFiles.map(({ path, contents }) => [`/${path.slice(here.length)}`, ['text/javascript', Buffer.from(contents)]]));
  files.set('/', ['text/html', readFileSync(`${here}index.html`)]);
  files.set('/page.css', ['text/css', readFileSync(`${here}page.css`)]);
  return files;
}

/** Starts the embedded server. Returns the variables that name it. */
async function startServer() {
  const env = { ...process.env, LIVEKIT_API_KEY: 'devkey', LIVEKIT_API_SECRET: randomBytes(24).toString('base64url') };
  const child = start(['dev', '--port', '0'], env);
  return { ...env, LIVEKIT_URL: await serverUrl(child) };
}

const children = new Set();
let isEnding = false;

/** Starts a command of toolbridge, which must run until the demo ends. */
function start(args, env) {
  const child = spawn(TOOLBRIDGE, args, { env, stdio: ['pipe', 'pipe', 'inherit'], detached: true });
  children.add(child);
  child.once('error', (error) => {
    children.delete(child);
    void end(`${TOOLBRIDGE}: ${error.message}`);
  });
  child.once('exit', (status, signal) => {
    children.delete(child);
    if (!isEnding) void end(`toolbridge ${args[0]} has ended with ${status ?? signal}`);
  });
  return child;
}

/** Ends the programs, the server last, and then this process. */
async function end(error) {
  if (isEnding) return;
  isEnding = true;
  if (error !== undefined) console.error(`demo: ${error}`);
  for (const child of [...children].reverse()) {
    const exited = once(child, 'exit');
    child.kill('SIGTERM');
    await exited;
  }
  process.exit(error === undefined ? 0 : 1);
}

function servePage(files, env, port) {
  const server = createServer(async (request, response) => {
    const found = files.get(request.url);
    if (request.method === 'GET' && found !== undefined) return response.setHeader('content-type', found[0]).end(found[1]);
    // Other pages can make the browser send requests here, but without this page's origin.
    const isOwn = request.headers.origin === `http://127.0.0.1:${server.address().port}`;
    if (request.method !== 'POST' || request.url !== '/join' || !isOwn) return response.writeHead(404).end();
    try {
      const args = ['token', '--room', ROOM, '--identity', PAGE, '--role', 'client', '--ttl', '1h'];
      const { stdout } = await promisify(execFile)(TOOLBRIDGE, args, { env });
      response.setHeader('content-type', 'application/json').end(JSON.stringify({ url: env.LIVEKIT_URL, token: stdout.trim() }));
    } catch (error) {
      response.writeHead(500).end();
      console.error(`demo: ${error.message}`);
    }
  });
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, '127.0.0.1', () => resolve(server.address().port));
  });
}

/** The assistant, which is `toolbridge assistant`. Its calls and their outcomes are printed. */
class Assistant {
  #child;
  #calls = new Map();
  #id = 0;
  #onReady;

  constructor(env, onReady) {
    this.#onReady = onReady;
    this.#child = start(['assistant', '--room', ROOM, '--identity', 'assistant', '--client', PAGE], env);
    createInterface({ input: this.#child.stdout }).on('line', (line) => this.#read(JSON.parse(line)));
  }

  /** Calls a tool. Resolves when the call has ended. */
  call(tool, args) {
    const id = ++this.#id;
    console.log(`\n→ ${tool} ${JSON.stringify(args)}`);
    this.#child.stdin.write(`${JSON.stringify({ type: 'call', id, tool, arguments: args, to: PAGE, timeoutMs: TIMEOUT })}\n`);
    return new Promise((resolve) => this.#calls.set(id, { begun: performance.now(), resolve }));
  }

  #read(line) {
    const call = this.#calls.get(line.id);
    if (line.type === 'event' && line.owner === PAGE && line.event === 'ready') {
      console.log(`\nThe page has joined with the tools ${line.tools.join(', ')}.`);
      this.#onReady();
    } else if (line.type === 'event' && line.event === 'left' && line.peer.identity === PAGE) {
      console.log('\nThe page has left.');
    } else if (line.type === 'progress' && call !== undefined && line.message !== undefined) {
      console.log(`  ${line.message}`);
    } else if (line.type === 'result' && call !== undefined) {
      this.#calls.delete(line.id);
      const took = `${Math.round(performance.now() - call.begun)} ms`;
      console.log(line.error === undefined ? `← ${JSON.stringify(line.value)} (${took})` : `← error ${line.error.code}: ${line.error.message} (${took})`);
      call.resolve();
    }
  }
}

/** Reads a line such as `set_lamp {"on": false}`. */
function parseCall(line) {
  const [, tool, text] = /^(\S+)\s*(.*)$/s.exec(line);
  const args = text === '' ? {} : JSON.parse(text);
  if (typeof args !== 'object' || args === null || Array.isArray(args)) throw new Error('the arguments must be a JSON object');
  return [tool, args];
}

process.on('SIGINT', () => void end());
process.on('SIGTERM', () => void end());

try {
  const files = await bundle();
  const env = await startServer();
  let hasCalled = false;
  const assistant = new Assistant(env, async () => {
    if (hasCalled) return;
    hasCalled = true;
    for (const [tool, args] of CALLS) {
      if (tool === 'notify') console.log('\nThe next tool needs consent: answer the question in the page.');
      await assistant.call(tool, args);
    }
    console.log('\nType further calls, such as: set_lamp {"on": false}');
  });
  const port = await servePage(files, env, Number(values.port));
  console.log(`Open http://127.0.0.1:${port}/ in a browser. Press Ctrl-C to stop.`);
  createInterface({ input: process.stdin })
    .on('line', (line) => {
      if (line.trim() === '') return;
      try {
        void assistant.call(...parseCall(line.trim()));
      } catch (error) {
        console.log(`  ${error.message}. A call is a tool and its arguments, such as: set_lamp {"on": false}`);
      }
    })
    .on('close', () => void end());
} catch (error) {
  await end(error.message);
}
