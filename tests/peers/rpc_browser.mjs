// Both ends of LiveKit's RPC in a browser, which know nothing of toolbridge: rpc_browser.html in headless Chromium.
//
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_browser.mjs calls PEER CALLS
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_browser.mjs methods [--own-browser]
//
// It prints the events of rpc_calls.py and rpc_methods.py. See page.mjs for the browser; with --own-browser it is one of this
// process group, even if BROWSER names another. With E2EE_KEY in the environment its data is encrypted end to end with that
// shared key.

import { parseArgs } from "node:util";

import { open } from "./page.mjs";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { "own-browser": { type: "boolean", default: false } },
});
const [role, peer, calls = "[]"] = positionals;
const settings = {
  url: process.env.LIVEKIT_URL,
  token: process.env.LIVEKIT_TOKEN,
  key: process.env.E2EE_KEY,
  role,
  peer,
  calls: JSON.parse(calls),
};
await open("rpc_browser.html", settings, { own: values["own-browser"], stays: role === "methods" });
