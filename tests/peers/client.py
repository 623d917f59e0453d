"""A foreign client. All it knows is LiveKit's SDK and two messages: ToolUseRequest (6) and ToolUseResult (7).

    LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… client.py

Prints a line {"event": "ready", …} in the room, {"event": "answered", …} after each answer.
Leaves on SIGTERM, or when its standard input ends.
"""

import asyncio
import itertools
import json
import os
import signal
import threading

import msgpack
from livekit import rtc


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


def frame_of(packet):
    try:
        frame = msgpack.unpackb(packet.data)
    except ValueError:
        return {}  # somebody else's data
    return frame if isinstance(frame, dict) else {}


def say(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


async def main():
    room, heard, stanza = rtc.Room(), asyncio.Queue(), itertools.count(1)
    room.on("data_received", heard.put_nowait)
    room.on("disconnected", lambda _reason: heard.put_nowait(None))
    leave_when_told(lambda: heard.put_nowait(None))
    await room.connect(os.environ["LIVEKIT_URL"], os.environ["LIVEKIT_TOKEN"])
    say("ready", identity=room.local_participant.identity, room=room.name)

    while packet := await heard.get():
        frame = frame_of(packet)
        if frame.get("type") != 6 or not packet.participant:  # LiveKit says who sent a packet
            continue
        request = frame["body"]
        if request.get("execution") not in ("client", "either"):  # a `server` call is the assistant's own
            continue
        outcome = run(request["toolName"], request.get("parameters") or {})
        if outcome is None:
            continue
        answer = {
            "stanzaId": next(stanza),
            "conversationId": room.name,
            "type": 7,
            "meta": {},
            "body": {"id": request["id"], **outcome},
        }
        await room.local_participant.publish_data(
            msgpack.packb(answer), reliable=True, destination_identities=[packet.participant.identity]
        )
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
