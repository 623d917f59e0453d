// LiveKit's own RPC over its Node SDK, for comparison.
//
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_bench.mjs owner
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_bench.mjs caller
//
// The owner answers `echo` with the payload. The caller reads lines "COUNT BYTES IN_FLIGHT" and makes so many calls to `phone`
// with a payload of so many bytes, of which so many are in flight at any time. It prints {"ms": [...]}, the duration of each
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

await room.connect(process.env.LIVEKIT_URL, process.env.LIVEKIT_TOKEN, { autoSubscribe: false, dynacast: false });
if (role === "owner") {
  room.localParticipant.registerRpcMethod("echo", async ({ payload }) => payload);
} else if (!room.remoteParticipants.has("phone")) {
  await arrived;
}
say({ event: "ready" });

for await (const line of createInterface({ input: process.stdin })) {
  const [count, bytes, inFlight] = line.split(" ").map(Number);
  const payload = JSON.stringify({ data: "x".repeat(bytes) });
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
