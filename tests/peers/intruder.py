"""Participants without toolbridge that do what they are told, over LiveKit's SDK: attackers, mostly.

    LIVEKIT_URL=ws://… intruder.py

Reads a JSON object a line from its standard input, and answers each with {"event": "done", "do": …, "as": …}:

    {"do": "join", "as": NAME, "token": TOKEN}
    {"do": "send", "as": NAME, "to": IDENTITY, "packets": [{"type": …, "body": …, "meta"?: …, "stanza"?: …} | {"hex": …}]}
    {"do": "rpc", "as": NAME, "to": IDENTITY, "method": …, "payload": TEXT | "spaces": N, "timeout": SECONDS, "id": ID}
    {"do": "leave", "as": NAME}

`rpc` is done when the request is under way; then {"event": "answered", "as": NAME, "id": ID} follows, with `payload` or with
`code`, `message` and `data`. A packet of `hex` is sent as it is. With `spaces` the payload is {"a":"   …"} of that many.

It also prints {"event": "frame", "as": NAME, "from": IDENTITY, "type": …, "body": …, "meta": …} for each frame that a participant
receives, and {"event": "sees", "as": NAME, "identity": …} for each that it sees. It ends when its standard input does.
"""

import asyncio
import json
import os
import sys

import msgpack
from livekit import rtc

rooms = {}
calls = set()


def say(event, **more):
    print(json.dumps({"event": event, **more}, default=repr), flush=True)


async def join(name, command):
    room = rtc.Room()

    @room.on("data_received")
    def heard(packet):
        try:
            frame = msgpack.unpackb(packet.data, strict_map_key=False)
            kind, body, meta = frame["type"], frame["body"], frame["meta"]
        except Exception:
            return  # not a frame
        say("frame", **{"as": name, "from": getattr(packet.participant, "identity", None)}, type=kind, body=body, meta=meta)

    room.on("participant_connected", lambda who: say("sees", **{"as": name}, identity=who.identity))
    await room.connect(os.environ["LIVEKIT_URL"], command["token"])
    rooms[name] = room
    for identity in list(room.remote_participants):
        say("sees", **{"as": name}, identity=identity)


async def send(name, command):
    room = rooms[name]
    for packet in command["packets"]:
        if "hex" in packet:
            payload = bytes.fromhex(packet["hex"])
        else:
            frame = {"stanzaId": packet.get("stanza", -1), "conversationId": room.name, "type": packet["type"]}
            payload = msgpack.packb({**frame, "meta": packet.get("meta", {}), "body": packet["body"]})
        await room.local_participant.publish_data(
            payload, reliable=True, topic="toolbridge", destination_identities=[command["to"]]
        )


async def call(name, command):
    payload = command.get("payload")
    if payload is None:
        payload = '{"a":"' + " " * command["spaces"] + '"}'
    try:
        result = await rooms[name].local_participant.perform_rpc(
            destination_identity=command["to"],
            method=command["method"],
            payload=payload,
            response_timeout=command["timeout"],
        )
        more = {"payload": result}
    except rtc.RpcError as error:
        more = {"code": error.code, "message": error.message, "data": error.data}
    say("answered", **{"as": name}, id=command["id"], **more)


async def main():
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        do, name = command["do"], command["as"]
        if do == "join":
            await join(name, command)
        elif do == "send":
            await send(name, command)
        elif do == "rpc":
            task = asyncio.create_task(call(name, command))
            calls.add(task)
            task.add_done_callback(calls.discard)
        elif do == "leave":
            await rooms.pop(name).disconnect()
        say("done", **{"do": do, "as": name})


asyncio.run(main())
# Not by the interpreter's own end: the SDK's threads may still call into it then, and abort the process.
os._exit(0)
