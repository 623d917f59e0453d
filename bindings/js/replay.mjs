// Replays traces: `replay.mjs CORE TRACES`. CORE is `wasm/core.js` or `plain/core.js` of the folder that `scripts/bindings js` prints,
// TRACES the folder that `scripts/bindings traces` prints. Each line that the core writes must be equal, byte by byte.
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

import { replay } from "./trace.mjs";

async function main(core, folder) {
  const module = await import(pathToFileURL(resolve(core)).href);
  const isWasm = "loadSync" in module;
  const Session = isWasm ? await module.load(readFileSync(join(dirname(core), "core.wasm"))) : module.load();
  const toBase64 = (bytes) => Buffer.from(bytes).toString("base64");
  const files = readdirSync(folder).filter((it) => it.endsWith(".jsonl")).sort();
  let lines = 0;
  for (const file of files) {
    const { equal, expected, found } = replay(Session, readFileSync(join(folder, file), "utf8"), toBase64);
    if (equal === undefined) throw new Error(`${file}: the trace has ${expected}\nand the core ${found}`);
    lines += equal;
  }
  if (lines === 0) throw new Error(`there are no traces in ${folder}`);
  console.log(`${core}: ${files.length} traces, ${lines} lines are equal`);
}

if (process.argv.length === 4) await main(process.argv[2], process.argv[3]);
