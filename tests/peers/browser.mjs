// A foreign client or assistant in a browser, over livekit-client: browser.html in headless Chromium.
//
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… browser.mjs client [--two-connections]
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… browser.mjs assistant PEER TOOL [ARGUMENTS] [--count N] [--timeout-ms MS] [--stop]
//
// It prints the events of client.mjs and assistant.mjs. With --two-connections it joins as SDKs before single peer
// connections did. See page.mjs for the browser. With E2EE_KEY in the environment its data is encrypted end to end with that
// shared key.

import { parseArgs } from "node:util";

import { open } from "./page.mjs";

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
  key: process.env.E2EE_KEY,
  twoConnections: values["two-connections"],
  role,
  peer,
  tool,
  parameters: JSON.parse(json),
  count: Number(values.count),
  timeoutMs: Number(values["timeout-ms"]),
  stop: values.stop,
};
await open("browser.html", settings, { stays: role === "client" });
