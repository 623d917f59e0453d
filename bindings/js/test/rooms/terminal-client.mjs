// A client over toolbridge's command line, at a terminal where a person answers its questions.

import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

import { serveTools } from './mcp-tools.mjs';
import { consent } from './tools.mjs';

/** What a terminal makes a signal of. */
const CTRL_C = '\x03';

/** Starts a client with the tools of tools.toml and mcp-tools.mjs. The questions are answered as those of the other clients. */
export async function terminalClient(t, room, identity) {
  const folder = mkdtempSync(join(tmpdir(), 'toolbridge-client-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const { url, note } = await serveTools(t);
  const programs = readFileSync(new URL('tools.toml', import.meta.url), 'utf8');
  const tools = join(folder, 'tools.toml');
  writeFileSync(tools, `${programs}\n[[mcp]]\nname = "memory"\nurl = "${url}"\nconsent = "never"\n`, { mode: 0o600 });

  // `script` runs it at a terminal of its own.
  const command = `"$TOOLBRIDGE" client --room ${room} --identity ${identity} --tools ${tools}`;
  const child = spawn('script', ['--quiet', '--return', '--command', `exec ${command}`, '/dev/null'], { stdio: ['pipe', 'pipe', 'inherit'] });
  const ended = new Promise((resolve) => child.once('close', resolve));
  const printed = [];
  let isStopped = false;
  void ended.then(() => isStopped || t.diagnostic(`the client ${identity} has ended: ${printed.join('\n')}`));
  t.after(async () => {
    isStopped = true;
    child.stdin.write(CTRL_C);
    await ended;
  });
  const person = new Person(note, (answer) => child.stdin.write(`${answer}\n`));
  createInterface({ input: child.stdout }).on('line', (line) => {
    printed.push(line);
    person.read(line);
  });
}

/** Answers the questions as `consent` of tools.mjs says. */
class Person {
  #note;
  #type;
  /** The questions that were asked, by number. */
  #asked = new Map();
  /** The one whose arguments are being read. */
  #current;

  constructor(note, type) {
    this.#note = note;
    this.#type = type;
  }

  read(line) {
    const question = /^question (\d+): run (\S+) for /.exec(line);
    if (question) this.#current = { number: question[1], name: question[2], text: '' };
    const withdrawn = /question (\d+) was withdrawn/.exec(line);
    if (withdrawn) this.#asked.get(withdrawn[1])?.abort();
    if (this.#current === undefined) return;
    if (line.startsWith('│ ')) this.#current.text += line.slice(2).trimEnd();
    if (line.startsWith('type ')) void this.#answer(this.#current);
  }

  async #answer({ number, name, text }) {
    this.#current = undefined;
    if (this.#asked.has(number)) return; // it is printed again after other lines
    const controller = new AbortController();
    this.#asked.set(number, controller);
    const { signal } = controller;
    const isAllowed = await consent({ tool: { name }, arguments: JSON.parse(text), signal }, this.#note);
    this.#type(`${isAllowed ? 'yes' : 'no'} ${number}`);
  }
}
