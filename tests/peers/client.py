"""A foreign client. All it knows is LiveKit's SDK and two messages: ToolUseRequest (6) and ToolUseResult (7).

    LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… client.py [--streams] [--show]

With --streams it answers a Configuration (12) with its own, which says that it takes frames as byte streams, and sends
answers above 15,000 bytes so; then it also prints {"event": "greeted"}.

With E2EE_KEY in the environment its data is encrypted end to end with that shared key.

With --show it prints {"event": "heard", "type": …, "id": …, "from": …} of whatever it is sent.

Prints a line {"event": "ready", …} in the room, {"event": "answered", …} after each answer.
Leaves on SIGTERM, or when its standard input ends.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
import threading

import msgpack
from livekit import rtc

from room_options import options


LARGE = 15_000
STREAM_TOPIC = "toolbridge.frame"


def run(tool, parameters):
    if tool == "get_battery":
        return {"success": True, "result": {"level": 0.8}}
    if tool == "echo":
        return {"success": True, "result": parameters}
    if tool == "fail":
        return {"success": False, "errorCode": "out_of_range", "errorMessage": "the watch is out of range"}
    if tool == "hang":
        return None
    return {"success": False, "errorCode": "unknown_tool", "errorMessage": f"no tool is called {tool}"}


def frame_of(data):
    try:
        frame = msgpack.unpackb(data)
    except ValueError:
        return {}  # data of another app
    return frame if isinstance(frame, dict) else {}


def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


async def main():
    room, heard, stanza = rtc.Room(), asyncio.Queue(), itertools.count(1)
    streams = "--streams" in sys.argv[1:]
    reading, greeted = set(), set()

    def packet_came(packet):
        if packet.participant:  # LiveKit says who sent a packet
            heard.put_nowait((packet.participant.identity, packet.data))

    def stream_came(reader, sender):
        async def read():
            heard.put_nowait((sender, b"".join([chunk async for chunk in reader])))

        reading.add(asyncio.create_task(read()))

    async def send(kind, body, to):
        frame = {"stanzaId": next(stanza), "conversationId": room.name, "type": kind, "meta": {}, "body": body}
        data = msgpack.packb(frame)
        if not streams or len(data) <= LARGE:
            await room.local_participant.publish_data(data, reliable=True, destination_identities=[to])
            return
        writer = await room.local_participant.stream_bytes(
            "frame", total_size=len(data), topic=STREAM_TOPIC, destination_identities=[to]
        )
        await writer.write(data)
        await writer.aclose()

    room.on("data_received", packet_came)
    room.register_byte_stream_handler(STREAM_TOPIC, stream_came)
    room.on("disconnected", lambda _reason: heard.put_nowait(None))
    leave_when_told(lambda: heard.put_nowait(None))
    await room.connect(os.environ["LIVEKIT_URL"], os.environ["LIVEKIT_TOKEN"], options())
    say("ready", identity=room.local_participant.identity, room=room.name)

    while came := await heard.get():
        sender, data = came
        frame = frame_of(data)
        if "--show" in sys.argv[1:]:
            body = frame.get("body") or {}
            say("heard", type=frame.get("type"), id=body.get("id"), **{"from": sender}, bytes=len(data))
        if streams and frame.get("type") == 12 and sender not in greeted:
            greeted.add(sender)
            await send(12, {"conversationId": room.name, "features": ["tool_use", "frame_stream"]}, sender)
            say("greeted", by=sender)
        if frame.get("type") != 6:
            continue
        request = frame["body"]
        if request.get("execution") not in ("client", "either"):  # a `server` call is the assistant's own
            continue
        outcome = run(request["toolName"], request.get("parameters") or {})
        if outcome is None:
            continue
        await send(7, {"id": request["id"], **outcome}, sender)
        say("answered", id=request["id"], tool=request["toolName"], success=outcome["success"])
    await room.disconnect()


def leave_when_told(leave):
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, leave)

    def watch_stdin():
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(leave)

    threading.Thread(target=watch_stdin, daemon=True).start()


asyncio.run(main())
# Not by the interpreter's own end: the SDK's threads may still call into it then, and abort the process.
os._exit(0)
