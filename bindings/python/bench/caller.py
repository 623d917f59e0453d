"""A participant in Python that calls the page of `scripts/bench-bindings`: ``caller.py HOW``.

HOW is ``rpc`` (``perform_rpc`` of LiveKit's SDK), ``room`` (toolbridge over the SDK's room), or ``join`` (toolbridge by itself). For each
line ``CALLS BYTES`` it makes so many calls, one after the other, and prints the time of each in milliseconds, and the CPU time of this
process per call. All send the same payloads.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import string
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from toolbridge import Assistant

URL, TOKEN = os.environ["LIVEKIT_URL"], os.environ["LIVEKIT_TOKEN"]

#: The letters of the payloads.
LETTERS = string.ascii_letters + string.digits + "-_"

Call = Callable[[str], Awaitable[str]]


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


async def connected() -> Any:
    from livekit import rtc

    room = rtc.Room()
    await room.connect(URL, TOKEN, rtc.RoomOptions(auto_subscribe=False))
    return room


async def caller(how: str) -> Call:
    if how == "rpc":
        room = await connected()

        async def perform(data: str) -> str:
            answer: str = await room.local_participant.perform_rpc(
                destination_identity="phone",
                method="echo",
                payload=json.dumps({"data": data}, separators=(",", ":")),
                response_timeout=20,
            )
            return str(json.loads(answer)["data"])

        return perform
    assistant = Assistant(await connected()) if how == "room" else await Assistant.join(URL, TOKEN)
    await assistant.ready("phone", timeout=30)

    async def call(data: str) -> str:
        return str((await assistant.call("echo", {"data": data}, to="phone", timeout=20))["data"])

    return call


async def measure(call: Call, count: int, size: int) -> None:
    data = "".join(random.Random(size).choices(LETTERS, k=size))
    ms = []
    cpu = time.process_time()
    for _ in range(count):
        begun = time.perf_counter()
        assert await call(data) == data
        ms.append((time.perf_counter() - begun) * 1e3)
    say({"ms": ms, "cpu": (time.process_time() - cpu) * 1e3 / count})


async def main(how: str) -> None:
    call = await caller(how)
    say({"event": "ready"})
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        await measure(call, *map(int, line.split()))
    os._exit(0)  # the SDK's threads may take long to end


asyncio.run(main(sys.argv[1]))
