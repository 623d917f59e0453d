// What the tests in real rooms use: tokens, toolbridge's command line, rooms in Node, and pages in Chromium.
//
// They need LIVEKIT_URL, LIVEKIT_API_KEY and LIVEKIT_API_SECRET (`scripts/parts livekit-server with …`), TOOLBRIDGE (the path of
// the command line), for pages CHROMIUM, and for Python PYTHON, which has its package. RTC_NODE is another installation of @livekit/rtc-node. A test without its parts is skipped, and fails with TOOLBRIDGE_REQUIRE_PARTS=1.

import { spawn } from 'node:child_process';
import { createHmac, randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { extname } from 'node:path';
import { fileURLToPath } from 'node:url';

const { LIVEKIT_URL, LIVEKIT_API_KEY, LIVEKIT_API_SECRET, TOOLBRIDGE, PYTHON, TOOLBRIDGE_REQUIRE_PARTS, CHROMIUM = '/usr/bin/chromium', RTC_NODE = '@livekit/rtc-node' } = process.env;

export const url = LIVEKIT_URL;

// Another version of the SDK may be tested, too.
export const { Room, dispose } = await import(RTC_NODE);

/** The option `skip` of a test that needs these parts. */
export function needs(...parts) {
  const found = { server: LIVEKIT_URL && LIVEKIT_API_KEY && LIVEKIT_API_SECRET, toolbridge: TOOLBRIDGE, chromium: existsSync(CHROMIUM), script: existsSync('/usr/bin/script'), python: PYTHON };
  const missing = parts.filter((part) => !found[part]);
  if (missing.length === 0) return {};
  if (TOOLBRIDGE_REQUIRE_PARTS === '1') throw new Error(`missing: ${missing.join(', ')}`);
  return { skip: `not installed: ${missing.join(', ')}` };
}

/** A name that no other test uses. */
export const freshRoom = () => `room-${randomBytes(6).toString('hex')}`;

/** A token. `role` is an attribute, and `grants` are further grants. */
export function token(room, identity, { role, kind, grants = {} } = {}) {
  const now = Math.floor(Date.now() / 1000);
  const claims = {
    iss: LIVEKIT_API_KEY,
    sub: identity,
    nbf: now - 10,
    exp: now + 600,
    video: { room, roomJoin: true, canPublish: true, canSubscribe: true, canPublishData: true, canUpdateOwnMetadata: false, ...grants },
    ...(role && { attributes: { 'toolbridge.role': role } }),
    ...(kind && { kind }),
  };
  const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const text = `${part({ alg: 'HS256', typ: 'JWT' })}.${part(claims)}`;
  return `${text}.${createHmac('sha256', LIVEKIT_API_SECRET).update(text).digest('base64url')}`;
}

/** Lets the server change whether a participant may publish data. */
export async function allowData(room, identity, canPublishData) {
  const response = await fetch(`${LIVEKIT_URL.replace(/^ws/, 'http')}/twirp/livekit.RoomService/UpdateParticipant`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${token(room, 'admin', { grants: { roomAdmin: true } })}` },
    body: JSON.stringify({ room, identity, permission: { can_subscribe: true, can_publish: true, can_publish_data: canPublishData } }),
  });
  if (!response.ok) throw new Error(`UpdateParticipant: ${response.status} ${await response.text()}`);
}

/** Runs a command of toolbridge to its end. */
export async function toolbridge(...args) {
  const child = spawn(TOOLBRIDGE, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let [out, err] = ['', ''];
  child.stdout.on('data', (data) => (out += data));
  child.stderr.on('data', (data) => (err += data));
  const status = await new Promise((resolve) => child.once('close', resolve));
  return { status, out, err };
}

/** Calls a tool by `toolbridge call --json`, and returns the object that it prints. */
export async function callOnce(room, tool, args = {}, ...more) {
  const { out, err } = await toolbridge('call', '--room', room, '--identity', 'agent', '--json', ...more, tool, JSON.stringify(args));
  try {
    return JSON.parse(out);
  } catch {
    throw new Error(`toolbridge call printed ${out} ${err}`);
  }
}

/** `toolbridge assistant`, or `toolbridge client`, until it is closed. */
export class Program {
  constructor(t, ...args) {
    this.child = spawn(TOOLBRIDGE, args, { stdio: ['pipe', 'pipe', 'pipe'] });
    this.lines = [];
    this.waiting = new Set();
    this.id = 0;
    this.child.stderr.on('data', (data) => t.diagnostic(String(data)));
    createInterface({ input: this.child.stdout }).on('line', (line) => {
      // An assistant prints nothing else than objects, a client nothing else than texts.
      this.lines.push(line.startsWith('{') ? JSON.parse(line) : { text: line });
      this.take();
    });
    this.ended = new Promise((resolve) => this.child.once('close', resolve));
    t.after(() => this.close());
  }

  take() {
    for (const check of [...this.waiting]) check();
  }

  /** Resolves with the first line that matches, also one that was printed before. */
  line(matches) {
    return new Promise((resolve) => {
      const check = () => {
        const found = this.lines.find(matches);
        if (!found) return;
        this.waiting.delete(check);
        resolve(found);
      };
      this.waiting.add(check);
      check();
    });
  }

  say(command) {
    this.child.stdin.write(`${JSON.stringify(command)}\n`);
  }

  /** Starts a call. */
  begin(tool, args = {}, more = {}) {
    const id = ++this.id;
    this.say({ type: 'call', id, tool, arguments: args, ...more });
    return { id, result: this.line((line) => line.type === 'result' && line.id === id) };
  }

  call(tool, args, more) {
    return this.begin(tool, args, more).result;
  }

  async close() {
    this.child.stdin.end();
    if (this.child.exitCode === null && this.child.signalCode === null) this.child.kill('SIGTERM');
    await this.ended;
  }
}

/** An assistant that waits until this client is ready. */
export async function assistant(t, room, client = 'phone') {
  const program = new Program(t, 'assistant', '--room', room, '--identity', 'agent', '--client', client);
  await program.line((line) => line.event === 'ready' && line.owner === client);
  return program;
}

const packages = fileURLToPath(new URL('../../', import.meta.url));
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.mjs': 'text/javascript' };

/** Serves this package and its dependencies to pages. */
async function serve({ policy } = {}) {
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url, 'http://page');
    try {
      const body = await readFile(packages + (pathname === '/' ? 'test/rooms/page.html' : pathname.slice(1)));
      response.setHeader('content-type', TYPES[extname(pathname === '/' ? '.html' : pathname)] ?? TYPES[pathname === '/' ? '.html' : '.js']);
      if (policy) response.setHeader('content-security-policy', policy);
      response.end(body);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return server;
}

let browser;

/** Starts Chromium, once. */
export async function launchBrowser() {
  const { chromium } = await import('playwright-core');
  browser ??= await chromium.launch({
    executablePath: CHROMIUM,
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run'],
  });
  return browser;
}

/** A page in Chromium with livekit-client and toolbridge; what it logs is in `logs`. `init` runs before its scripts. */
export async function openPage(t, { policy, entry = 'toolbridge', init } = {}) {
  const server = await serve({ policy });
  const context = await (await launchBrowser()).newContext();
  const page = await context.newPage();
  if (init) await page.addInitScript(init);
  page.logs = [];
  page.on('console', (message) => page.logs.push(`${message.type()}: ${message.text()}`));
  page.on('pageerror', (error) => page.logs.push(`error: ${error.stack}`));
  t.after(async () => {
    await context.close();
    server.closeAllConnections();
    server.close();
  });
  page.address = `http://127.0.0.1:${server.address().port}/?entry=${entry}`;
  await page.goto(page.address);
  await page.waitForFunction(() => globalThis.ready);
  return page;
}

/**
 * A page as that of `openPage`, which can be hidden and frozen: Playwright keeps its own pages active. `send` sends a command of
 * Chromium's DevTools, `evaluate` runs a function.
 */
export async function openFreezablePage(t) {
  const { address } = await openPage(t);
  const session = await (await launchBrowser()).newBrowserCDPSession();
  const { browserContextId } = await session.send('Target.createBrowserContext');
  t.after(() => session.send('Target.disposeBrowserContext', { browserContextId }));
  const { targetId } = await session.send('Target.createTarget', { url: 'about:blank', browserContextId });
  const { sessionId } = await session.send('Target.attachToTarget', { targetId, flatten: false });
  const waiting = new Map();
  session.on('Target.receivedMessageFromTarget', ({ sessionId: from, message }) => {
    const { id, result, error } = JSON.parse(message);
    if (from !== sessionId || id === undefined) return;
    const { resolve, reject } = waiting.get(id);
    waiting.delete(id);
    if (error) reject(new Error(error.message));
    else resolve(result);
  });
  let count = 0;
  const send = (method, params = {}) =>
    new Promise((resolve, reject) => {
      const id = ++count;
      waiting.set(id, { resolve, reject });
      session.send('Target.sendMessageToTarget', { sessionId, message: JSON.stringify({ id, method, params }) }).catch(reject);
    });
  const evaluate = async (run, argument = null) => {
    const expression = `(${run})(${JSON.stringify(argument)})`;
    const { result, exceptionDetails } = await send('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  };
  await send('Page.navigate', { url: address });
  await evaluate(
    () =>
      new Promise((resolve) => {
        const check = () => (globalThis.ready ? resolve() : setTimeout(check, 10));
        check();
      }),
  );
  return { send, evaluate };
}

export async function closeBrowser() {
  await browser?.close();
  browser = undefined;
}
