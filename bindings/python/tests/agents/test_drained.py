"""A job of livekit-agents that is drained, and then shut down, during calls."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from ends import connect, fresh_room, require_parts
from livekit import rtc
from memory import in_loop
from toolbridge import Client, ToolContext

require_parts("AGENTS_PYTHON")

WORKER = Path(__file__).with_name("drained.py")


@in_loop
async def test_job_that_is_drained_keeps_its_calls_and_one_that_is_shut_down_ends_them() -> None:
    begun: asyncio.Queue[str] = asyncio.Queue()
    stopped: asyncio.Queue[Any] = asyncio.Queue()

    async def run(name: str, cx: ToolContext) -> None:
        begun.put_nowait(name)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.put_nowait((name, cx.stop_reason))

    async def hang(cx: ToolContext) -> None:
        """Hangs, for the model."""
        await run("hang", cx)

    async def wait(cx: ToolContext) -> None:
        """Hangs, for the job."""
        await run("wait", cx)

    name, room = fresh_room(), rtc.Room()
    pipe = asyncio.subprocess.PIPE
    async with Client(room, [hang, wait]):
        await connect(room, name, "phone", "client")
        worker = await asyncio.create_subprocess_exec(
            os.environ["AGENTS_PYTHON"], str(WORKER), name, stdin=pipe, stdout=pipe
        )
        assert worker.stdin is not None and worker.stdout is not None
        try:
            assert {await begun.get(), await begun.get()} == {"hang", "wait"}
            worker.stdin.write(b"drain\n")
            assert json.loads(await worker.stdout.readline()) == {"worker": "drained"}
            assert stopped.empty()
            worker.stdin.write(b"close\n")
            # Interrupted speech is a barge-in. The goodbye stops the other at once: the client would wait for 5 s otherwise.
            assert await stopped.get() == ("hang", "barge_in")
            assert await asyncio.wait_for(stopped.get(), 3) == ("wait", "caller_gone")
            outcome = json.loads(await worker.stdout.readline())
            assert outcome == {"own": "Closed", "may_have_run": True}
        finally:
            worker.stdin.close()
            await worker.wait()
    await room.disconnect()
