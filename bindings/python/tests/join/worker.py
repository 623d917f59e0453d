"""A process with an assistant that has joined by itself: ``worker.py HOW ROOM``, which says how it ends. It prints what happens."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from typing import Any

import without_sdk  # noqa: F401
from ends import token
from toolbridge import Assistant

URL = os.environ["LIVEKIT_URL"]


def say(text: str) -> None:
    print(text, flush=True)


async def joined(name: str) -> tuple[Assistant, asyncio.Task[Any]]:
    """Returns an assistant with a call that hangs."""
    bot = await Assistant.join(URL, token(name, "agent", "assistant"))
    await bot.ready("phone", timeout=20)
    started = asyncio.Event()
    call = asyncio.create_task(bot.call("hang", timeout=60, on_progress=lambda it: started.set()))
    await started.wait()
    say("started")
    return bot, call


async def run(how: str, name: str) -> None:
    bot, call = await joined(name)
    if how == "exit":
        sys.exit(0)  # asyncio.run ends the loop
    if how == "raise":
        raise RuntimeError("the worker fails")
    if how == "fork":
        child = os.fork()
        if child == 0:
            try:
                bot.tools()
            except RuntimeError as error:
                say(f"the child: {error}")
            del bot
            gc.collect()
            say("the child ends")
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        say(f"the child has ended with {status}")
        result = await bot.call("echo", {"a": 1})
        say(f"the parent: {result}")
        await bot.aclose()
        say("closed")


def stopped_loop(name: str) -> None:
    """The interpreter exits while a loop is stopped and not closed."""
    loop = asyncio.new_event_loop()
    kept.append(loop.run_until_complete(joined(name)))
    kept.append(loop)


def closed_loop(name: str) -> None:
    """The loop is closed, and the assistant is garbage. The process goes on."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(joined(name))
    loop.close()
    del loop
    gc.collect()
    say("collected")
    sys.stdin.readline()


kept: list[Any] = []


def main(how: str, name: str) -> None:
    if how == "stopped_loop":
        stopped_loop(name)
    elif how == "closed_loop":
        closed_loop(name)
    else:
        asyncio.run(run(how, name))


main(*sys.argv[1:])
