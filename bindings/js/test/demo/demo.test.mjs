// The demo as a person uses it: its page in Chromium, and what the terminal prints.
//
// It needs TOOLBRIDGE (the path of the command line) and Chromium, as the tests in `rooms` do. With DEMO_SCREENSHOTS=FOLDER
// it saves what the page looks like there.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { closeBrowser, launchBrowser, needs } from '../rooms/ends.mjs';

const { DEMO_SCREENSHOTS } = process.env;

/** How long a line may take, in milliseconds. */
const PATIENCE = 30_000;

/** The demo, and the lines that it has printed. */
class Demo {
  constructor(t) {
    this.child = spawn(process.execPath, [fileURLToPath(new URL('../../demo/demo.mjs', import.meta.url))], { stdio: ['pipe', 'pipe', 'inherit'] });
    this.lines = [];
    this.waiting = new Set();
    createInterface({ input: this.child.stdout }).on('line', (line) => {
      this.lines.push(line);
      for (const check of [...this.waiting]) check();
    });
    this.ended = new Promise((resolve) => this.child.once('close', resolve));
    t.after(() => this.close());
  }

  /** Resolves with the match of the first line that matches, also one that was printed before. */
  line(pattern) {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no line matches ${pattern}:\n${this.lines.join('\n')}`)), PATIENCE);
      const check = () => {
        const found = this.lines.map((line) => pattern.exec(line)).find(Boolean);
        if (!found) return;
        this.waiting.delete(check);
        clearTimeout(timer);
        resolve(found);
      };
      this.waiting.add(check);
      check();
    });
  }

  type(line) {
    this.child.stdin.write(`${line}\n`);
  }

  close() {
    this.child.stdin.end();
    return this.ended;
  }
}

test('demo: page switches its lamp, tells its battery, and asks before it notifies', { ...needs('toolbridge', 'chromium'), timeout: 120_000 }, async (t) => {
  const demo = new Demo(t);
  const [, address] = await demo.line(/(http:\S+)/);
  const browser = await launchBrowser();
  t.after(closeBrowser);
  const context = await browser.newContext({ viewport: { width: 1000, height: 560 } });
  await context.grantPermissions(['notifications'], { origin: new URL(address).origin });
  const page = await context.newPage();
  const errors = [];
  page.on('pageerror', (error) => errors.push(error.stack));
  const shot = async (name) => DEMO_SCREENSHOTS && page.screenshot({ path: join(DEMO_SCREENSHOTS, `${name}.png`) });
  const isOn = () => page.evaluate(() => document.getElementById('lamp').classList.contains('on'));
  const glass = () => page.evaluate(() => getComputedStyle(document.querySelector('.glass')).fill);

  await page.goto(address);
  const dark = await glass();
  await demo.line(/^The page has joined with the tools set_lamp, get_battery, notify\.$/);
  await demo.line(/^← {"on":true} \(\d+ ms\)$/);
  assert.equal(await isOn(), true);
  assert.notEqual(await glass(), dark);
  await demo.line(/^← {"level":[\d.]+,"charging":(true|false)} \(\d+ ms\)$/);
  assert.match(await page.textContent('#battery'), /^\d+ %/);

  // Nothing is shown before the person has answered.
  await page.waitForSelector('dialog[open]');
  assert.match(await page.textContent('dialog p'), /notify/);
  assert.equal(await page.textContent('#notifications'), '');
  await shot('consent');
  await page.click('dialog button[value=allow]');
  await demo.line(/^← {"shown":"(page|system)"} \(\d+ ms\)$/);
  assert.equal(await page.textContent('#notifications'), 'The lamp is on.');
  await shot('lamp-on');

  demo.type('set_lamp {"on": false}');
  await demo.line(/^← {"on":false} \(\d+ ms\)$/);
  assert.equal(await isOn(), false);
  assert.equal(await glass(), dark);

  demo.type('notify {"text": "no"}');
  await page.click('dialog button[value=refuse]');
  await demo.line(/^← error permission_denied: /);
  assert.equal(await page.textContent('#notifications'), 'The lamp is on.');

  demo.type('set_lamp {"on": 1}');
  await demo.line(/^← error invalid_parameters: on: /);
  demo.type('set_lamp {');
  await demo.line(/A call is a tool and its arguments, such as/);
  assert.deepEqual(errors, []);

  assert.equal(await demo.close(), 0);
});

test('demo: only its own page gets a token', { ...needs('toolbridge'), timeout: 60_000 }, async (t) => {
  const demo = new Demo(t);
  const [, address] = await demo.line(/(http:\S+)/);
  const ask = (headers) => fetch(new URL('/join', address), { method: 'POST', headers });
  assert.equal((await ask({})).status, 404);
  assert.equal((await ask({ origin: 'http://elsewhere.example' })).status, 404);
  assert.equal((await ask({ origin: new URL(address).origin })).status, 200);
});
