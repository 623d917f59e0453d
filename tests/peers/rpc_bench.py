"""LiveKit's own RPC over its Python SDK, for comparison. It does what rpc_bench.mjs does, with the same payloads.

    LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_bench.py owner
    LIVEKIT_URL=ws://… LIVEKIT_TOKEN=… rpc_bench.py caller
"""

import asyncio
import json
import os
import sys
import time

from livekit import rtc

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def say(what):
    print(json.dumps(what), flush=True)


def data(size, letters):
    if letters == 0:
        rooms = ["kitchen", "hall", "attic"]
        record = lambda n: {
            "id": n, "level": n * 7919 % 1000, "name": f"lamp {n}", "on": n % 2 == 0, "room": rooms[n % 3],
            "seen": 1795000000 + n * 61,
        }
        return [record(n) for n in range(-(-size // 84))]
    number, text = 1, []
    for _ in range(size):
        number = (number * 1103515245 + 12345) & 0xFFFFFFFF
        text.append(ALPHABET[(number >> 16) % letters])
    return "".join(text)


async def calls(room, count, size, in_flight, letters):
    payload = json.dumps({"data": data(size, letters)}, separators=(",", ":"))
    ms, begun = [], 0

    async def run():
        nonlocal begun
        while begun < count:
            begun += 1
            start = time.perf_counter()
            await room.local_participant.perform_rpc(
                destination_identity="phone", method="echo", payload=payload, response_timeout=20
            )
            ms.append((time.perf_counter() - start) * 1e3)

    await asyncio.gather(*(run() for _ in range(in_flight)))
    say({"ms": ms})


async def main():
    room, arrived = rtc.Room(), asyncio.Event()
    room.on("participant_connected", lambda who: who.identity == "phone" and arrived.set())
    await room.connect(os.environ["LIVEKIT_URL"], os.environ["LIVEKIT_TOKEN"], rtc.RoomOptions(auto_subscribe=False))
    if sys.argv[1] == "owner":

        async def echo(call):
            return call.payload

        room.local_participant.register_rpc_method("echo", echo)
    elif "phone" not in room.remote_participants:
        await arrived.wait()
    say({"event": "ready"})
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        await calls(room, *map(int, line.split()))
    os._exit(0)


asyncio.run(main())
