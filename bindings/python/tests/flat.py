"""Memory stays flat over many calls: ``flat.py [CALLS]``, 1,000,000 by default. Linux.

A client and an assistant, each with its session of the core, make the calls in a room in memory. Every tenth of them the size of the
process is printed. It may grow until the core's caches are full, and must not afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time

from memory import Ends
from toolbridge import tool

#: Calls that are open at the same time.
OPEN = 32

#: The time limit of a call, in seconds: a machine that is busy with other things does not end the run.
LIMIT = 600

#: How much larger the process may be at the end than after two tenths of the calls, in bytes.
GROWTH = 8 * 1024 * 1024


@tool(schema={"type": "object"})
def echo(arguments: dict[str, object]) -> dict[str, object]:
    """Returns its arguments"""
    return arguments


def size() -> int:
    """The resident memory of this process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def main(calls: int) -> None:
    caps = {"calls_per_second": 1_000_000}
    async with Ends([echo], client={"caps": caps, "threads": 4}) as ends:
        sizes = []
        made = 0

        async def call(until: int) -> None:
            nonlocal made
            while made < until:
                made += 1
                number = made
                assert await ends.bot.call("echo", {"n": number}, to="phone", timeout=LIMIT) == {"n": number}
                ends.memory.sent.clear()

        for part in range(1, 11):
            begun, before = time.monotonic(), made
            await asyncio.gather(*(call(calls * part // 10) for _ in range(OPEN)))
            gc.collect()
            sizes.append(size())
            rate = (made - before) / (time.monotonic() - begun)
            print(f"{made:>9} calls: {sizes[-1] / 1e6:.1f} MB, {rate:.0f} calls/s", flush=True)
        growth = sizes[-1] - sizes[1]
        if growth > GROWTH:
            sys.exit(f"the process grew by {growth} bytes in the last eight tenths; the limit is {GROWTH}")


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
