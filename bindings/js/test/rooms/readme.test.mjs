// The README's app and assistant in Chromium, and its commands, over `toolbridge dev`.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createServer } from 'node:http';
import { dirname } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { build } from 'esbuild';

import { serverUrl } from '../../demo/server-url.mjs';
import { example } from '../readme.mjs';
import { closeBrowser, launchBrowser, needs } from './ends.mjs';

after(closeBrowser);

const { TOOLBRIDGE } = process.env;

/** Starts the server of the command line on free ports. Returns the environment of the commands that follow. */
async function startServer(t) {
  const env = { ...process.env, LIVEKIT_API_KEY: 'devkey', LIVEKIT_API_SECRET: 'secret', PATH: `${dirname(TOOLBRIDGE)}:${process.env.PATH}` };
  const child = spawn(TOOLBRIDGE, ['dev', '--port', '0'], { env, stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = new Promise((resolve) => child.once('close', resolve));
  t.after(async () => {
    child.kill();
    await ended;
  });
  return { ...env, LIVEKIT_URL: await serverUrl(child) };
}

/** Runs a line of shell. */
async function shell(env, line) {
  const child = spawn('sh', ['-c', line], { env, stdio: ['ignore', 'pipe', 'pipe'] });
  let [out, err] = ['', ''];
  child.stdout.on('data', (data) => (out += data));
  child.stderr.on('data', (data) => (err += data));
  const status = await new Promise((resolve) => child.once('close', resolve));
  return { status, out, err };
}

/** An example as the script of a page: `url` and `token` come from its server, and `before` is what else it lacks. */
async function bundle(code, before) {
  const contents = `${before}\nconst { url, token } = await (await fetch('/token')).json();\n${code}\nglobalThis.isDone = true;\n`;
  const resolveDir = fileURLToPath(new URL('.', import.meta.url));
  const { outputFiles } = await build({ stdin: { contents, resolveDir, loader: 'ts' }, bundle: true, format: 'esm', target: 'es2022', write: false });
  return outputFiles[0].text;
}

/** Opens a page with this script. `requests` are those that its server got. */
async function openApp(t, script, credentials) {
  const requests = [];
  const server = createServer(({ method, url }, response) => {
    requests.push(`${method} ${url}`);
    if (url === '/app.js') response.setHeader('content-type', 'text/javascript').end(script);
    else if (url === '/token') response.end(JSON.stringify(credentials));
    else response.setHeader('content-type', 'text/html').end('<!doctype html><script type="module" src="app.js"></script>');
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const context = await (await launchBrowser()).newContext();
  t.after(async () => {
    await context.close();
    server.closeAllConnections();
    server.close();
  });
  const page = await context.newPage();
  const lines = [];
  page.on('console', (message) => lines.push(message.text()));
  page.on('pageerror', (error) => lines.push(String(error.stack)));
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  await page.waitForFunction(() => globalThis.isDone).catch((error) => {
    throw new Error(lines.join('\n'), { cause: error });
  });
  return { page, lines, requests };
}

test('app of the README is called over `toolbridge dev`', { ...needs('toolbridge', 'chromium'), timeout: 120_000 }, async (t) => {
  const env = await startServer(t);
  const commands = example('sh', 'toolbridge dev').split('\n').map((line) => line.replace(/ +#.*/, ''));
  const [makeToken, listTools, callLamp] = ['token', 'tools', 'call'].map((verb) => commands.find((line) => line.startsWith(`toolbridge ${verb} `)));
  const token = async (line) => (await shell(env, line)).out.trim();
  const url = env.LIVEKIT_URL;
  const app = await bundle(example('ts', 'new Client(room'), `const photos = new Set(['cat.jpg', 'dog.jpg']); Object.assign(globalThis, { photos });`);
  const { page, requests } = await openApp(t, app, { url, token: await token(makeToken) });

  const listed = await shell(env, listTools);
  assert.match(listed.out, /set_lamp[^]*delete_photo|delete_photo[^]*set_lamp/, listed.err);
  const lamp = await shell(env, callLamp);
  assert.equal(lamp.status, 0, lamp.err);
  assert.equal(requests.at(-1), 'POST /lamp?on=true');
  const wrong = await shell(env, callLamp.replace('true', '"x"'));
  assert.match(wrong.err, /on: .*boolean/);

  const remove = (name) => shell(env, `toolbridge call --room home delete_photo '{"name": "${name}"}'`);
  for (const [name, button, status] of [['cat.jpg', 'Allow', 0], ['dog.jpg', 'Refuse', 4]]) {
    const removing = remove(name);
    await page.getByText(name).waitFor();
    await page.getByRole('button', { name: button }).click();
    const removed = await removing;
    assert.equal(removed.status, status, removed.err);
  }
  assert.deepEqual(await page.evaluate(() => [...globalThis.photos]), ['dog.jpg']);

  const before = `import { Room } from 'livekit-client'; const room = new Room();`;
  const code = `${example('ts', 'new Assistant(room)')}\n${example('ts', 'turn.bargeIn()')}\nawait lamp.catch(({ code }) => console.log(code));`;
  const credentials = { url, token: await token('toolbridge token --room home --identity agent --role assistant') };
  const { lines } = await openApp(t, await bundle(code, before), credentials);
  assert.ok(lines.some((line) => line.includes('phone: set_lamp, Switches the lamp on or off')), lines.join('\n'));
  assert.equal(lines.at(-1), 'cancelled');
});
