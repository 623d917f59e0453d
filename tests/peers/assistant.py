"""A foreign assistant. All it knows is LiveKit's SDK, ToolUseRequest (6), ToolUseResult (7) and ControlStop (10).

    LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… assistant.py PEER TOOL [ARGUMENTS] [--count N] [--timeout-ms MS] [--stop]

Waits for the participant PEER, then asks it for TOOL, one call after the other. Prints one line a happening:
{"event": "ready" | "asked" | "result" | "stray" | "silence", …}. Its status is 1 if a call was not answered.
"""

import argparse
import asyncio
import json
import os
import secrets
import time

import msgpack
from livekit import rtc

# The server announces a newcomer up to 3 s late, and LiveKit's SDKs do not name the sender of what came before.
ANNOUNCED = 3.5


def say(event, **more):
    print(json.dumps({"event": event, **more}, default=repr), flush=True)


async def main(options):
    room, results, arrived = rtc.Room(), asyncio.Queue(), asyncio.Event()

    @room.on("participant_active")
    def joined(who):
        if who.identity == options.peer:
            arrived.set()

    @room.on("data_received")
    def heard(packet):
        if packet.participant and packet.participant.identity == options.peer:
            frame = msgpack.unpackb(packet.data)
            if frame["type"] == 7:
                results.put_nowait(frame["body"])

    stanza = 0

    async def send(kind, body):
        nonlocal stanza
        stanza -= 1  # an assistant counts downwards
        frame = {"stanzaId": stanza, "conversationId": room.name, "type": kind, "meta": {}, "body": body}
        await room.local_participant.publish_data(
            msgpack.packb(frame), reliable=True, destination_identities=[options.peer]
        )

    async def result_of(call):
        while (body := await results.get())["id"] != call:
            say("stray", body=body)
        return body

    await room.connect(os.environ["LIVEKIT_URL"], os.environ["LIVEKIT_TOKEN"])
    say("ready", identity=room.local_participant.identity, room=room.name)
    if options.peer in room.remote_participants:
        await asyncio.sleep(ANNOUNCED)
    else:
        await arrived.wait()

    unanswered = 0
    for _ in range(options.count):
        call, begun = secrets.token_urlsafe(16)[:21], time.monotonic()
        request = {"id": call, "toolName": options.tool, "parameters": options.arguments}
        await send(6, {**request, "execution": "client", "timeoutMs": options.timeout_ms})
        say("asked", id=call)
        if options.stop:
            await send(10, {"conversationId": room.name, "targetId": call})
        try:
            # The owner says itself that time is up; only if it does not, it is silent.
            body = await asyncio.wait_for(result_of(call), options.timeout_ms / 1000 + 1)
            say("result", id=call, ms=round((time.monotonic() - begun) * 1000, 1), body=body)
        except asyncio.TimeoutError:
            unanswered += 1
            say("silence", id=call)
    await room.disconnect()
    return 1 if unanswered else 0


parser = argparse.ArgumentParser()
parser.add_argument("peer")
parser.add_argument("tool")
parser.add_argument("arguments", nargs="?", type=json.loads, default={})
parser.add_argument("--count", type=int, default=1)
parser.add_argument("--timeout-ms", type=int, default=10_000)
parser.add_argument("--stop", action="store_true")
status = asyncio.run(main(parser.parse_args()))
# Not by the interpreter's own end: the SDK's threads may still call into it then, and abort the process.
os._exit(status)
