// A foreign client. All it knows is LiveKit's SDK and two messages: ToolUseRequest (6) and ToolUseResult (7).
//
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… client.mjs
//
// Prints a line {"event": "ready", …} in the room, {"event": "answered", …} after each answer.
// Leaves on SIGTERM, or when its standard input ends.

import { Room, RoomEvent, dispose } from "@livekit/rtc-node";
import { decode, encode } from "@msgpack/msgpack";

const tools = {
  get_battery: () => ({ success: true, result: { level: 0.8 } }),
  echo: (parameters) => ({ success: true, result: parameters }),
  fail: () => ({ success: false, errorCode: "out_of_range", errorMessage: "the watch is out of range" }),
  hang: () => undefined,
};
const unknown = (tool) => ({ success: false, errorCode: "unknown_tool", errorMessage: `no tool is called ${tool}` });

const room = new Room();
let stanza = 0;

room.on(RoomEvent.DataReceived, async (payload, sender) => {
  const frame = frameOf(payload);
  if (frame?.type !== 6 || !sender) return; // LiveKit says who sent a packet
  const { id, toolName, parameters, execution } = frame.body;
  if (execution !== "client" && execution !== "either") return; // a `server` call is the assistant's own
  const outcome = Object.hasOwn(tools, toolName) ? tools[toolName](parameters ?? {}) : unknown(toolName);
  if (!outcome) return;
  const body = { id, ...outcome };
  const answer = { stanzaId: ++stanza, conversationId: room.name, type: 7, meta: {}, body };
  const options = { reliable: true, destination_identities: [sender.identity] };
  await room.localParticipant.publishData(encode(answer), options);
  say("answered", { id, tool: toolName, success: outcome.success });
});

function frameOf(payload) {
  try {
    return decode(payload);
  } catch {
    return undefined; // somebody else's data
  }
}

function say(event, more) {
  console.log(JSON.stringify({ event, ...more }));
}

async function leave() {
  await room.disconnect();
  await dispose();
  process.exit(0);
}

process.once("SIGTERM", leave);
process.stdin.resume().once("end", leave);
room.once(RoomEvent.Disconnected, leave);
await room.connect(process.env.LIVEKIT_URL, process.env.LIVEKIT_TOKEN, { autoSubscribe: false, dynacast: false });
say("ready", { identity: room.localParticipant.identity, room: room.name });
