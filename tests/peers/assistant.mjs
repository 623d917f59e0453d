// A foreign assistant. All it knows is LiveKit's SDK, ToolUseRequest (6), ToolUseResult (7) and ControlStop (10).
//
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… assistant.mjs PEER TOOL [ARGUMENTS] [--count N] [--timeout-ms MS] [--stop]
//
// Waits for the participant PEER, then asks it for TOOL, one call after the other. Prints one line a happening:
// {"event": "ready" | "asked" | "result" | "stray" | "silence", …}. Its status is 1 if a call was not answered.

import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

import { Room, RoomEvent, dispose } from "@livekit/rtc-node";
import { decode, encode } from "@msgpack/msgpack";

// The server announces a newcomer up to 3 s late, and LiveKit's SDKs do not name the sender of what came before.
const ANNOUNCED = 3500;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    count: { type: "string", default: "1" },
    "timeout-ms": { type: "string", default: "10000" },
    stop: { type: "boolean", default: false },
  },
});
const [peer, toolName, json = "{}"] = positionals;
const parameters = JSON.parse(json);
const timeoutMs = Number(values["timeout-ms"]);

const room = new Room();
const open = new Map(); // the call that waits: id -> what takes its result
let stanza = 0;

room.on(RoomEvent.DataReceived, (payload, sender) => {
  if (sender?.identity !== peer) return;
  const { type, body } = decode(payload);
  if (type !== 7) return;
  const settle = open.get(body.id);
  if (settle) settle(body);
  else say("stray", { body });
});

async function send(type, body) {
  const frame = { stanzaId: --stanza, conversationId: room.name, type, meta: {}, body }; // an assistant counts downwards
  await room.localParticipant.publishData(encode(frame), { reliable: true, destination_identities: [peer] });
}

function say(event, more) {
  console.log(JSON.stringify({ event, ...more }));
}

const arrived = new Promise((resolve) => {
  room.on(RoomEvent.ParticipantConnected, (who) => who.identity === peer && resolve());
});
await room.connect(process.env.LIVEKIT_URL, process.env.LIVEKIT_TOKEN, { autoSubscribe: false, dynacast: false });
say("ready", { identity: room.localParticipant.identity, room: room.name });
await (room.remoteParticipants.has(peer) ? sleep(ANNOUNCED) : arrived);

let unanswered = 0;
for (let asked = 0; asked < Number(values.count); asked++) {
  const id = randomBytes(16).toString("base64url").slice(0, 21);
  const result = new Promise((resolve) => open.set(id, resolve));
  const begun = performance.now();
  await send(6, { id, toolName, parameters, execution: "client", timeoutMs });
  say("asked", { id });
  if (values.stop) await send(10, { conversationId: room.name, targetId: id });
  // The owner says itself that time is up; only if it does not, it is silent.
  const body = await Promise.race([result, sleep(timeoutMs + 1000, undefined, { ref: false })]);
  open.delete(id);
  if (body) say("result", { id, ms: Math.round((performance.now() - begun) * 10) / 10, body });
  else say("silence", { id });
  unanswered += body ? 0 : 1;
}
await room.disconnect();
await dispose();
process.exit(unanswered ? 1 : 0);
