// A foreign client. All it knows is LiveKit's SDK and two messages: ToolUseRequest (6) and ToolUseResult (7).
//
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… client.mjs [--streams] [--show]
//
// With --streams it answers a Configuration (12) with its own, which says that it takes frames as byte streams, and sends
// answers above 15,000 bytes so; then it also prints {"event": "greeted"}.
//
// With E2EE_KEY in the environment its data is encrypted end to end with that shared key.
//
// With --show it prints {"event": "heard", "type": …, "id": …, "from": …} of whatever it is sent.
//
// Prints a line {"event": "ready", …} in the room, {"event": "answered", …} after each answer.
// Leaves on SIGTERM, or when its standard input ends.

import { Room, RoomEvent, dispose } from "@livekit/rtc-node";
import { decode, encode } from "@msgpack/msgpack";

import { options } from "./room_options.mjs";

const tools = {
  get_battery: () => ({ success: true, result: { level: 0.8 } }),
  echo: (parameters) => ({ success: true, result: parameters }),
  fail: () => ({ success: false, errorCode: "out_of_range", errorMessage: "the watch is out of range" }),
  hang: () => undefined,
};
const unknown = (tool) => ({ success: false, errorCode: "unknown_tool", errorMessage: `no tool is called ${tool}` });

const LARGE = 15_000;
const STREAM_TOPIC = "toolbridge.frame";
const streams = process.argv.includes("--streams");
const greeted = new Set();

const room = new Room();
let stanza = 0;

room.on(RoomEvent.DataReceived, (payload, sender) => sender && heard(payload, sender.identity)); // LiveKit says who sent it
room.registerByteStreamHandler(STREAM_TOPIC, async (reader, { identity }) => {
  heard(Buffer.concat(await reader.readAll()), identity);
});

async function heard(payload, sender) {
  const frame = frameOf(payload);
  if (process.argv.includes("--show")) {
    say("heard", { type: frame?.type, id: frame?.body?.id, from: sender, bytes: payload.length });
  }
  if (streams && frame?.type === 12 && !greeted.has(sender)) {
    greeted.add(sender);
    await send(12, { conversationId: room.name, features: ["tool_use", "frame_stream"] }, sender);
    say("greeted", { by: sender });
  }
  if (frame?.type !== 6) return;
  const { id, toolName, parameters, execution } = frame.body;
  if (execution !== "client" && execution !== "either") return; // a `server` call is the assistant's own
  const outcome = Object.hasOwn(tools, toolName) ? tools[toolName](parameters ?? {}) : unknown(toolName);
  if (!outcome) return;
  await send(7, { id, ...outcome }, sender);
  say("answered", { id, tool: toolName, success: outcome.success });
}

async function send(type, body, to) {
  const data = encode({ stanzaId: ++stanza, conversationId: room.name, type, meta: {}, body });
  if (!streams || data.length <= LARGE) {
    await room.localParticipant.publishData(data, { reliable: true, destination_identities: [to] });
    return;
  }
  const options = { name: "frame", topic: STREAM_TOPIC, totalSize: data.length, destinationIdentities: [to] };
  const writer = await room.localParticipant.streamBytes(options);
  await writer.write(data);
  await writer.close();
}

function frameOf(payload) {
  try {
    return decode(payload);
  } catch {
    return undefined; // data of another app
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
await room.connect(process.env.LIVEKIT_URL, process.env.LIVEKIT_TOKEN, options());
say("ready", { identity: room.localParticipant.identity, room: room.name });
