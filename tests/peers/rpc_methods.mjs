// An app that registers methods with LiveKit's SDK, and knows nothing of toolbridge: see rpc_methods.py.
//
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_methods.mjs

import { setTimeout as after } from "node:timers/promises";

import { Room, RpcError, dispose } from "@livekit/rtc-node";

function say(event, more) {
  console.log(JSON.stringify({ event, ...more }));
}

const methods = {
  echo: async (payload) => payload,
  slow: async (payload) => after(3000, payload),
  text: async () => "at home",
  large: async (payload) => JSON.stringify({ text: "x".repeat(JSON.parse(payload).bytes - 11) }),
  fail: async () => {
    throw new RpcError(1500, "the lamp is broken", JSON.stringify({ left: 2 }));
  },
  crash: async () => {
    throw new Error("a secret of the app");
  },
  hang: async () => after(600_000),
};

const room = new Room();
await room.connect(process.env.LIVEKIT_URL, process.env.LIVEKIT_TOKEN, { autoSubscribe: false, dynacast: false });
for (const [name, run] of Object.entries(methods)) {
  room.localParticipant.registerRpcMethod(name, async ({ payload }) => {
    say("ran", { method: name });
    return run(payload);
  });
}
say("ready");
process.stdin.resume();
await new Promise((resolve) => process.stdin.on("close", resolve).on("end", resolve));
await room.disconnect();
await dispose();
process.exit(0);
