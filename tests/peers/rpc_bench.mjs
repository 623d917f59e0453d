// LiveKit's own RPC over its Node SDK, for comparison.
//
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_bench.mjs owner
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_bench.mjs caller
//
// The owner answers `echo` with the payload. The caller reads lines "COUNT BYTES IN_FLIGHT LETTERS" and makes so many calls to
// `phone` with a payload of so many bytes, of which so many are in flight at any time. The payload has so many different letters,
// or is JSON records if that number is 0: LiveKit's RPC compresses it. The caller prints {"ms": [...]}, the duration of each
// call. Both print {"event": "ready"} and end with standard input.

import { createInterface } from "node:readline";
import { performance } from "node:perf_hooks";

import { Room, RoomEvent } from "@livekit/rtc-node";

const room = new Room();
const arrived = new Promise((resolve) => {
  room.on(RoomEvent.ParticipantConnected, (who) => who.identity === "phone" && resolve());
});
const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
const [role] = process.argv.slice(2);

// The same text as in benches/room/compare.rs.
const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
function text(bytes, letters) {
  let number = 1;
  const letter = () => {
    number = (Math.imul(number, 1103515245) + 12345) >>> 0;
    return ALPHABET[(number >>> 16) % letters];
  };
  return Array.from({ length: bytes }, letter).join("");
}

// The same records as there.
function data(bytes, letters) {
  if (letters > 0) {
    return text(bytes, letters);
  }
  const record = (_, n) => ({
    id: n, level: (n * 7919) % 1000, name: `lamp ${n}`, on: n % 2 === 0, room: ["kitchen", "hall", "attic"][n % 3],
    seen: 1795000000 + n * 61,
  });
  return Array.from({ length: Math.ceil(bytes / 84) }, record);
}

await room.connect(process.env.LIVEKIT_URL, process.env.LIVEKIT_TOKEN, { autoSubscribe: false, dynacast: false });
if (role === "owner") {
  room.localParticipant.registerRpcMethod("echo", async ({ payload }) => payload);
} else if (!room.remoteParticipants.has("phone")) {
  await arrived;
}
say({ event: "ready" });

for await (const line of createInterface({ input: process.stdin })) {
  const [count, bytes, inFlight, letters] = line.split(" ").map(Number);
  const payload = JSON.stringify({ data: data(bytes, letters) });
  const ms = [];
  let begun = 0;
  const run = async () => {
    while (begun < count) {
      begun += 1;
      const start = performance.now();
      await room.localParticipant.performRpc({ destinationIdentity: "phone", method: "echo", payload, responseTimeout: 20000 });
      ms.push(performance.now() - start);
    }
  };
  await Promise.all(Array.from({ length: inFlight }, run));
  say({ ms });
}
process.exit(0);
