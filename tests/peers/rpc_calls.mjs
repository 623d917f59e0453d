// A caller by LiveKit's RPC, which knows nothing of toolbridge: see rpc_calls.py.
//
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_calls.mjs [--sdk PACKAGE] PEER CALLS
//
// PACKAGE is the package of Node's SDK, by default the newest that is pinned.

import { parseArgs } from "node:util";

import { options } from "./room_options.mjs";
import { makeCalls } from "./rpc_ends.mjs";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { sdk: { type: "string", default: "@livekit/rtc-node" } },
});
const { Room, RoomEvent, RpcError, dispose } = await import(values.sdk);
const [peer, json] = positionals;

function say(event, more) {
  console.log(JSON.stringify({ event, ...more }));
}

const room = new Room();
const arrived = new Promise((resolve) => {
  room.on(RoomEvent.ParticipantConnected, (who) => who.identity === peer && resolve());
});
await room.connect(process.env.LIVEKIT_URL, process.env.LIVEKIT_TOKEN, options());
say("ready");
if (!room.remoteParticipants.has(peer)) await arrived;
await makeCalls(room.localParticipant, RpcError, peer, JSON.parse(json), say);
await room.disconnect();
await dispose();
process.exit(0);
