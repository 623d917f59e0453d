"""A participant in Python that calls the page of `scripts/bench bindings`: ``caller.py HOW``.

HOW is ``rpc`` (``perform_rpc`` of LiveKit's SDK), ``room`` (toolbridge over the SDK's room), or ``join`` (toolbridge by itself). For each
line ``CALLS BYTES`` it makes so many calls, one after the other, and prints the time of each in milliseconds, and the CPU time of this
process per call. All send the same payloads. For a line ``open CALLS`` it begins so many calls at once that end when the page says so,
and prints how many got a result.
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

#: The time limit of a call, in seconds.
TIMEOUT = 30

#: The letters of the payloads.
LETTERS = string.ascii_letters + string.digits + "-_"

#: Calls a tool or method with arguments.
Call = Callable[[str, dict[str, str]], Awaitable[Any]]


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

        async def perform(method: str, arguments: dict[str, str]) -> Any:
            answer: str = await room.local_participant.perform_rpc(
                destination_identity="phone",
                method=method,
                payload=json.dumps(arguments, separators=(",", ":")),
                response_timeout=TIMEOUT,
            )
            return json.loads(answer)

        return perform
    assistant = Assistant(await connected()) if how == "room" else await Assistant.join(URL, TOKEN)
    await assistant.ready("phone", timeout=30)

    async def call(tool: str, arguments: dict[str, str]) -> Any:
        return await assistant.call(tool, arguments, to="phone", timeout=TIMEOUT)

    return call


async def measure(call: Call, count: int, size: int) -> None:
    data = "".join(random.Random(size).choices(LETTERS, k=size))
    ms = []
    cpu = time.process_time()
    for _ in range(count):
        begun = time.perf_counter()
        assert (await call("echo", {"data": data}))["data"] == data
        ms.append((time.perf_counter() - begun) * 1e3)
    say({"ms": ms, "cpu": (time.process_time() - cpu) * 1e3 / count})


async def keep_open(call: Call, count: int) -> None:
    ended = await asyncio.gather(*(call("until", {"what": "go"}) for _ in range(count)), return_exceptions=True)
    failures = [it for it in ended if isinstance(it, BaseException)]
    say({"results": count - len(failures), "failures": sorted({repr(it)[:200] for it in failures})})


async def main(how: str) -> None:
    call = await caller(how)
    say({"event": "ready"})
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        first, second = line.decode().split()
        await (keep_open(call, int(second)) if first == "open" else measure(call, int(first), int(second)))
    os._exit(0)  # the SDK's threads may take long to end


asyncio.run(main(sys.argv[1]))
