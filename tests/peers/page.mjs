// A page over livekit-client in headless Chromium, which reports by requests: in_page.mjs is its other half.
//
// BROWSER in the environment is the address of a running chromium.mjs, in which the page is a tab. Without it, or with
// `own`, the page has a browser of its own, in this process group.

import { readFileSync } from "node:fs";
import { createServer } from "node:http";

import { start } from "./chromium.mjs";

const here = (path) => readFileSync(new URL(path, import.meta.url));
const script = (path) => ["text/javascript", here(path)];

// Serves this page on a free port of this machine, and prints what it says until it ends; it then ends this process. `stays`:
// the page is told to leave when standard input ends, as on SIGTERM.
export async function open(page, settings, { own = false, stays = false } = {}) {
  const files = {
    "/": ["text/html", here(page)],
    "/in_page.mjs": script("in_page.mjs"),
    "/rpc_ends.mjs": script("rpc_ends.mjs"),
    "/livekit-client.js": script("node_modules/livekit-client/dist/livekit-client.umd.js"),
    "/e2ee-worker.mjs": script("node_modules/livekit-client/dist/livekit-client.e2ee.worker.mjs"),
    "/msgpack.js": script("node_modules/@msgpack/msgpack/dist.umd/msgpack.min.js"),
    "/settings": ["application/json", JSON.stringify(settings)],
  };

  let leave;
  const told = new Promise((resolve) => (leave = resolve));
  process.once("SIGTERM", leave);
  if (stays) process.stdin.resume().once("end", leave);

  let ending = false;
  let close = async () => {};
  const end = async (status) => {
    if (ending) return;
    ending = true;
    await close().catch(() => {}); // the browser may be gone
    process.exit(status);
  };
  const fail = (reason) => {
    if (!ending) console.error(reason);
    end(1);
  };

  const server = createServer(async (request, response) => {
    const file = files[request.url];
    if (file) {
      response.setHeader("content-type", file[0]).end(file[1]);
      return;
    }
    let body = "";
    for await (const chunk of request.setEncoding("utf8")) body += chunk;
    if (request.url === "/leave") {
      // The page has this request open as long as it lives.
      response.once("close", () => response.writableFinished || fail("the page is gone"));
      await told;
    }
    response.end();
    if (request.url === "/say") console.log(body);
    if (request.url === "/failed") fail(body);
    if (request.url === "/ended") end(Number(body));
  });
  server.requestTimeout = 0;
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${server.address().port}/`;

  const devtools = own ? undefined : process.env.BROWSER;
  if (devtools) {
    const answer = await fetch(`http://${devtools}/json/new?${address}`, { method: "PUT" });
    if (!answer.ok) throw new Error(`no tab: ${answer.status} ${await answer.text()}`);
    const { id } = await answer.json();
    close = () => fetch(`http://${devtools}/json/close/${id}`);
  } else {
    close = start([address], (error) => fail(error?.message ?? "the browser has ended")).end;
  }
}
