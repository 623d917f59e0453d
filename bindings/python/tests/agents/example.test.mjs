// The worker of examples/agent_worker.py calls the tools of the page of examples/page_client.ts, in Chromium.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { closeBrowser, dispose, freshRoom, launchBrowser, needs, token, url } from '../../../js/test/rooms/ends.mjs';

const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));
const js = path('../../../js/');
const { build } = createRequire(`${js}package.json`)('esbuild');

after(async () => {
  await closeBrowser();
  await dispose();
});

async function openExample(t, room) {
  const { outputFiles } = await build({
    entryPoints: [path('../../../../examples/page_client.ts')],
    bundle: true,
    format: 'esm',
    write: false,
    alias: { toolbridge: `${js}dist/esm/index.js` },
    nodePaths: [`${js}node_modules`],
  });
  const context = await (await launchBrowser()).newContext();
  t.after(() => context.close());
  const page = await context.newPage();
  const html = '<!doctype html><meta charset="utf-8"><img alt="cat"><script type="module" src="/page.js"></script>';
  const answers = {
    '/': ['text/html', html],
    '/page.js': ['text/javascript', outputFiles[0].text],
    '/token': ['application/json', JSON.stringify({ url, token: token(room, 'page', { role: 'client' }) })],
  };
  const server = createServer((request, response) => {
    const [type, body] = answers[request.url] ?? ['text/plain', ''];
    response.setHeader('content-type', type);
    response.end(body);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  await page.goto(`http://127.0.0.1:${server.address().port}/`);
  return page;
}

/** Allows what the page asks, so many times. Returns the questions. */
async function allow(page, times) {
  const questions = [];
  for (let n = 0; n < times; n += 1) {
    const dialog = await page.waitForSelector('dialog');
    questions.push(await (await dialog.$('p')).textContent());
    await (await dialog.$('text=Allow')).click();
    await dialog.waitForElementState('hidden'); // of this question: the next one may be there already
  }
  return questions;
}

test('the worker and the page of the examples work together', { ...needs('server', 'chromium'), timeout: 240_000 }, async (t) => {
  const room = freshRoom();
  const page = await openExample(t, room);
  const asked = allow(page, 2);
  const turns = [
    [{ tool: 'set_lamp', arguments: { on: true } }],
    [{ tool: 'delete_photo', arguments: { title: 'cat' } }],
    [{ tool: 'delete_photo', arguments: { title: 'dog' } }],
  ];
  const worker = spawn(process.env.AGENTS_PYTHON, [path('example_worker.py'), JSON.stringify(turns), room], { stdio: ['pipe', 'pipe', 'inherit'] });
  t.after(async () => {
    worker.stdin.end();
    await new Promise((resolve) => (worker.exitCode === null ? worker.once('close', resolve) : resolve()));
  });
  const outputs = [];
  for await (const line of createInterface({ input: worker.stdout })) {
    const event = JSON.parse(line);
    if (event.event === 'outputs' && outputs.push(...event.outputs) === turns.length) break;
  }
  assert.deepEqual(outputs, ['{"on": true}', '{"value": null}', 'there is no photo "dog"']);
  assert.deepEqual(await page.evaluate(() => [document.body.className, document.images.length]), ['lit', 0]);
  assert.match((await asked)[0], /wants to run "delete_photo": Deletes a photo of this page for good/);
});
