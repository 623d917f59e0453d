"""A caller by LiveKit's RPC, which knows nothing of toolbridge.

    LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_calls.py PEER CALLS

CALLS is a JSON list of {"method": …, "payload": TEXT or "bytes": N, "timeout": SECONDS}: with `bytes` the payload is
{"text": "xxx…"} of that size. Waits for the participant PEER, then makes one call after the other. Prints
{"event": "result", "at": …, "ms": …} for each, with {"payload": …} or {"code": …, "message": …, "data": …}. Of a payload of more
than 1,000 bytes it prints the length, and whether it is the one of the request.

With E2EE_KEY in the environment its data is encrypted end to end with that shared key.
"""

import asyncio
import json
import os
import sys
import time

from livekit import rtc

from room_options import options


def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


async def main():
    peer, calls = sys.argv[1], json.loads(sys.argv[2])
    room, there = rtc.Room(), asyncio.Event()
    room.on("participant_connected", lambda who: who.identity == peer and there.set())
    await room.connect(os.environ["LIVEKIT_URL"], os.environ["LIVEKIT_TOKEN"], options())
    if peer in room.remote_participants:
        there.set()
    say("ready")
    await there.wait()
    for at, call in enumerate(calls):
        payload = call.get("payload")
        if payload is None:
            # A text that compresses as texts do: a client refuses one that expands more than 64 times.
            text = "".join(f"{n} " for n in range(call["bytes"] // 2))
            payload = json.dumps({"text": text[: call["bytes"] - 12]})
        began, more = time.monotonic(), {}
        try:
            result = await room.local_participant.perform_rpc(
                destination_identity=peer,
                method=call["method"],
                payload=payload,
                response_timeout=call.get("timeout", 15.0),
            )
            is_long = len(result) > 1_000
            same = json.loads(result) == json.loads(payload) if is_long else None
            more = {"length": len(result), "same": same} if is_long else {"payload": result}
        except rtc.RpcError as error:
            more = {"code": error.code, "message": error.message, "data": error.data}
        say("result", at=at, ms=round((time.monotonic() - began) * 1e3, 1), **more)
    await room.disconnect()


asyncio.run(main())
# Not by the interpreter's own end: the SDK's threads may still call into it then, and abort the process.
os._exit(0)
