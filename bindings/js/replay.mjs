// Replays traces: `replay.mjs CORE TRACES`. CORE is `wasm/core.js` or `plain/core.js` of the folder that `scripts/bindings js` prints,
// TRACES the folder that `scripts/bindings traces` prints. Each line that the core writes must be equal, byte by byte.
import { readFileSync, readdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const INPUT = '{"input":';

/** Returns what the core writes for each line of a trace that is not an input: the first that differs, or how many are equal. */
export function replay(Session, trace, toBase64) {
  let session;
  let result;
  let equal = 0;
  const outputLine = () => {
    const output = session.nextOutput();
    if (output === undefined) return `{"deadline":${session.nextDeadline() ?? null}}`;
    const bytes = session.takeBytes();
    if (bytes === undefined) return `{"output":${output}}`;
    return `{"output":${output.slice(0, -1)},"bytes":"${toBase64(bytes)}"}}`;
  };
  const resultOf = (input) => {
    try {
      if (session === undefined) {
        session = Session.create(input);
        return undefined;
      }
      const reply = session.handle(input);
      return reply === undefined ? undefined : `{"reply":${reply}}`;
    } catch (error) {
      return `{"error":${JSON.stringify(error.message)}}`;
    }
  };
  for (const line of trace.split("\n")) {
    if (line === "") continue;
    if (result === undefined && line.startsWith(INPUT)) {
      result = resultOf(line.slice(INPUT.length, -1));
      continue;
    }
    const found = result ?? outputLine();
    result = undefined;
    if (found !== line) return { expected: line, found };
    equal += 1;
  }
  session?.free();
  return { equal };
}

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
