"""A worker that waits for jobs, as livekit-agents' own commands `dev` and `start` let it, over `toolbridge dev`."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from ends import connect, fresh_room, require_parts
from livekit import rtc
from memory import in_loop
from toolbridge import Client, tool

require_parts("AGENTS_PYTHON")

WORKER = Path(__file__).with_name("dispatched_worker.py")


@asynccontextmanager
async def server() -> AsyncIterator[dict[str, str]]:
    """Runs `toolbridge dev`. The value is what it prints for another shell."""
    child = await asyncio.create_subprocess_exec(
        os.environ["TOOLBRIDGE"], "dev", "--port", "0", "--key", "devkey:secret", stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    reading: asyncio.Task[bytes] | None = None
    try:
        env: dict[str, str] = {}
        while len(env) < 3:
            line = (await child.stdout.readline()).decode()
            assert line, "toolbridge dev did not start"
            env.update(re.findall(r"export (LIVEKIT_\w+)=(\S+)", line))
        reading = asyncio.create_task(child.stdout.read())  # what it prints later is dropped
        yield env
    finally:
        child.terminate()
        await child.wait()
        if reading is not None:
            await reading


class Worker:
    """A worker, in an ``async with`` statement, which stops it."""

    async def __aenter__(self) -> Worker:
        self._child = await asyncio.create_subprocess_exec(os.environ["AGENTS_PYTHON"], str(WORKER), "dev")
        self._ended = asyncio.create_task(self._child.wait())
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._ended.done():
            self._child.terminate()
        await self._ended

    async def reports(self, queue: asyncio.Queue[Any]) -> Any:
        """Returns the next report of its agent."""
        report = asyncio.create_task(queue.get())
        await asyncio.wait({self._ended, report}, return_when=asyncio.FIRST_COMPLETED)
        assert report.done(), f"the worker ended with the status {self._child.returncode}"
        return report.result()


@in_loop
async def test_agent_is_dispatched_to_the_rooms_of_toolbridge_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    lamp: list[bool] = []
    reports: asyncio.Queue[Any] = asyncio.Queue()

    async def set_lamp(on: bool) -> dict[str, bool]:
        """Switches the lamp on or off."""
        lamp.append(on)
        return {"on": on}

    @tool(schema={"type": "object"}, description="Reports")
    async def report(seen: Any) -> None:
        reports.put_nowait(seen)

    async with server() as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        first, second = rtc.Room(), rtc.Room()
        async with Client(first, [set_lamp, report]) as client:
            # The room is open before the worker starts.
            await connect(first, fresh_room(), "phone", "client")
            async with Worker() as worker:
                assert await worker.reports(reports) == {"outputs": ['{"on": true}']}
                assert client.assistant is not None and client.assistant.startswith("agent-AJ_")
                # A room opens while the worker runs.
                async with Client(second, [set_lamp, report]):
                    await connect(second, fresh_room(), "phone", "client")
                    assert await worker.reports(reports) == {"outputs": ['{"on": true}']}
        assert lamp == [True, True]
        await first.disconnect()
        await second.disconnect()
