// A foreign client or assistant in a browser, over livekit-client: browser.html in headless Chromium.
//
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… browser.mjs client [--two-connections]
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… browser.mjs assistant PEER TOOL [ARGUMENTS] [--count N] [--timeout-ms MS] [--stop]
//
// It prints the events of client.mjs and assistant.mjs. With --two-connections it joins as SDKs before single peer
// connections did. CHROMIUM is the browser's path. Serves the page on a free port of this machine; the page says its events by requests.

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    "two-connections": { type: "boolean", default: false },
    count: { type: "string", default: "1" },
    "timeout-ms": { type: "string", default: "10000" },
    stop: { type: "boolean", default: false },
  },
});
const [role, peer, tool, json = "{}"] = positionals;
const settings = {
  url: process.env.LIVEKIT_URL,
  token: process.env.LIVEKIT_TOKEN,
  twoConnections: values["two-connections"],
  role,
  peer,
  tool,
  parameters: JSON.parse(json),
  count: Number(values.count),
  timeoutMs: Number(values["timeout-ms"]),
  stop: values.stop,
};

const here = (path) => readFileSync(new URL(path, import.meta.url));
const files = {
  "/": ["text/html", here("browser.html")],
  "/livekit-client.js": ["text/javascript", here("node_modules/livekit-client/dist/livekit-client.umd.js")],
  "/msgpack.js": ["text/javascript", here("node_modules/@msgpack/msgpack/dist.umd/msgpack.min.js")],
  "/settings": ["application/json", JSON.stringify(settings)],
};

let leave;
const told = new Promise((resolve) => (leave = resolve));
process.once("SIGTERM", leave);
if (role === "client") process.stdin.resume().once("end", leave);

const server = createServer(async (request, response) => {
  const file = files[request.url];
  if (file) {
    response.setHeader("content-type", file[0]).end(file[1]);
    return;
  }
  let body = "";
  for await (const chunk of request.setEncoding("utf8")) body += chunk;
  if (request.url === "/leave") await told;
  response.end();
  if (request.url === "/say") console.log(body);
  if (request.url === "/failed") {
    console.error(body);
    end(1);
  }
  if (request.url === "/ended") end(Number(body));
});
server.requestTimeout = 0;
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));

const profile = mkdtempSync(join(tmpdir(), "toolbridge-browser-"));
const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"];
const page = `http://127.0.0.1:${server.address().port}/`;
const browser = spawn(process.env.CHROMIUM ?? "chromium", [...flags, `--user-data-dir=${profile}`, page], { stdio: "ignore" });
browser.once("error", (error) => {
  console.error(error.message);
  end(1);
});
browser.once("exit", () => end(1));

function end(status) {
  browser.removeAllListeners("exit");
  browser.once("exit", () => {
    try {
      rmSync(profile, { recursive: true, force: true, maxRetries: 10 }); // its other processes may still write to it
    } finally {
      process.exit(status);
    }
  });
  if (browser.exitCode !== null || !browser.kill()) process.exit(status);
}
