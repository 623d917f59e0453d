// Replays traces in a page of Chromium: `replay-in-chromium.mjs BUILT TRACES`. BUILT is the folder that `scripts/bindings js`
// prints, TRACES the one that `scripts/bindings traces` prints, and CHROMIUM the path of the browser. Both forms of the core
// must write each line as the trace has it, byte by byte, as in Node (replay.mjs).
import { readdirSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

import { chromium } from "playwright-core";

const here = fileURLToPath(new URL(".", import.meta.url));
const TYPES = { ".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".html": "text/html" };

/** Serves the folders by the first part of the path. `/` is an empty page. */
async function serve(folders) {
  const server = createServer(async (request, response) => {
    const [, name, ...rest] = normalize(decodeURIComponent(new URL(request.url, "http://page").pathname)).split("/");
    const type = TYPES[/\.\w+$/.exec(rest.at(-1) ?? ".html")?.[0]] ?? "text/plain";
    try {
      const body = name === "" ? "<!doctype html>" : await readFile(join(folders[name], ...rest));
      response.writeHead(200, { "content-type": name === "" ? TYPES[".html"] : type }).end(body);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return server;
}

/** Runs in the page. */
async function replayAll({ form, names }) {
  const { replay } = await import("/js/trace.mjs");
  const core = await import(`/built/${form}/core.js`);
  const Session = form === "wasm" ? await core.load(await (await fetch("/built/wasm/core.wasm")).arrayBuffer()) : core.load();
  const PART = 32_768; // as many arguments as every engine takes
  const toBase64 = (bytes) => {
    let text = "";
    for (let at = 0; at < bytes.length; at += PART) text += String.fromCharCode(...bytes.subarray(at, at + PART));
    return btoa(text);
  };
  let lines = 0;
  for (const name of names) {
    const { equal, expected, found } = replay(Session, await (await fetch(`/traces/${name}`)).text(), toBase64);
    if (equal === undefined) throw new Error(`${name}: the trace has ${expected}\nand the core ${found}`);
    lines += equal;
  }
  return lines;
}

async function main(built, traces) {
  const names = readdirSync(traces).filter((name) => name.endsWith(".jsonl")).sort();
  const server = await serve({ js: here, built, traces });
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"],
  });
  try {
    for (const form of ["wasm", "plain"]) {
      const page = await browser.newPage();
      await page.goto(`http://127.0.0.1:${server.address().port}/`);
      const lines = await page.evaluate(replayAll, { form, names });
      if (lines === 0) throw new Error(`there are no traces in ${traces}`);
      console.log(`Chromium ${browser.version()}, ${form}: ${names.length} traces, ${lines} lines are equal`);
      await page.close();
    }
  } finally {
    await browser.close();
    server.closeAllConnections();
    server.close();
  }
}

if (process.argv.length !== 4) {
  console.error("usage: replay-in-chromium.mjs BUILT TRACES");
  process.exit(2);
}
await main(process.argv[2], process.argv[3]);
