// A caller by LiveKit's RPC, which knows nothing of toolbridge: see rpc_calls.py.
//
//     LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_calls.mjs PEER CALLS

import { Room, RoomEvent, RpcError, dispose } from "@livekit/rtc-node";

const [peer, json] = process.argv.slice(2);

function say(event, more) {
  console.log(JSON.stringify({ event, ...more }));
}

const room = new Room();
const arrived = new Promise((resolve) => {
  room.on(RoomEvent.ParticipantConnected, (who) => who.identity === peer && resolve());
});
await room.connect(process.env.LIVEKIT_URL, process.env.LIVEKIT_TOKEN, { autoSubscribe: false, dynacast: false });
say("ready");
if (!room.remoteParticipants.has(peer)) await arrived;

for (const [at, call] of JSON.parse(json).entries()) {
  const payload = call.payload ?? JSON.stringify({ text: "x".repeat(call.bytes - 11) });
  const began = performance.now();
  let more;
  try {
    const result = await room.localParticipant.performRpc({
      destinationIdentity: peer,
      method: call.method,
      payload,
      responseTimeout: (call.timeout ?? 15) * 1000,
    });
    const isLong = result.length > 1000;
    const same = isLong && JSON.stringify(JSON.parse(result)) === JSON.stringify(JSON.parse(payload));
    more = isLong ? { length: result.length, same } : { payload: result };
  } catch (error) {
    if (!(error instanceof RpcError)) throw error;
    more = { code: error.code, message: error.message, data: error.data };
  }
  say("result", { at, ms: Math.round((performance.now() - began) * 10) / 10, ...more });
}
await room.disconnect();
await dispose();
process.exit(0);
