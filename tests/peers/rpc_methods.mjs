// An app that registers methods with LiveKit's SDK, and knows nothing of toolbridge: see rpc_methods.py.
//
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_methods.mjs [--sdk PACKAGE]
//
// PACKAGE is the package of Node's SDK, by default the newest that is pinned.

import { parseArgs } from "node:util";

import { options } from "./room_options.mjs";
import { registerMethods } from "./rpc_ends.mjs";

const { values } = parseArgs({ options: { sdk: { type: "string", default: "@livekit/rtc-node" } } });
const { Room, RpcError, dispose } = await import(values.sdk);

function say(event, more) {
  console.log(JSON.stringify({ event, ...more }));
}

const room = new Room();
await room.connect(process.env.LIVEKIT_URL, process.env.LIVEKIT_TOKEN, options());
registerMethods(room.localParticipant, RpcError, say);
say("ready");
process.stdin.resume();
await new Promise((resolve) => process.stdin.on("close", resolve).on("end", resolve));
await room.disconnect();
await dispose();
process.exit(0);
