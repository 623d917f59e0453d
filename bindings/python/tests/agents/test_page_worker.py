"""The worker of the page over `toolbridge dev`, by livekit-agents' own commands: `dev` waits for jobs, `connect` joins a room by itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from ends import connect, dev_server, fresh_room, require_parts
from livekit import rtc
from memory import in_loop
from toolbridge import Client, tool

require_parts("AGENTS_PYTHON")

WORKER = Path(__file__).with_name("page_worker.py")

#: What the agent reports when its model has switched the lamp on.
SEEN = {"outputs": [["set_lamp", False, '{"on": true}']]}


class Worker:
    """A worker, in an ``async with`` statement, which stops it."""

    def __init__(self, *command: str) -> None:
        self._command = command

    async def __aenter__(self) -> Worker:
        self._child = await asyncio.create_subprocess_exec(os.environ["AGENTS_PYTHON"], str(WORKER), *self._command)
        self._ended = asyncio.create_task(self._child.wait())
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._ended.done():
            self._child.terminate()
        await self._ended

    async def reports(self, page: Page) -> Any:
        """Returns the next report of its agent."""
        report = asyncio.create_task(page.reports.get())
        await asyncio.wait({self._ended, report}, return_when=asyncio.FIRST_COMPLETED)
        assert report.done(), f"the worker ended with the status {self._child.returncode}"
        return report.result()


class Page:
    """A client with a lamp, in an ``async with`` statement."""

    def __init__(self) -> None:
        self.room = fresh_room()
        self.lamp: list[bool] = []
        self.reports: asyncio.Queue[Any] = asyncio.Queue()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Page:
        async def set_lamp(on: bool) -> dict[str, bool]:
            """Switches the lamp on or off."""
            self.lamp.append(on)
            return {"on": on}

        @tool(schema={"type": "object"}, description="Reports")
        async def report(seen: Any) -> None:
            self.reports.put_nowait(seen)

        room = rtc.Room()
        self._stack.push_async_callback(room.disconnect)
        self.client = await self._stack.enter_async_context(Client(room, [set_lamp, report]))
        await connect(room, self.room, "phone", "client")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Runs `toolbridge dev` for this process and the workers that it starts."""
    async with dev_server() as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        yield


@in_loop
async def test_agent_of_the_page_connects_to_a_room_of_toolbridge_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server(monkeypatch), Page() as page, Worker("connect", "--room", page.room) as worker:
        assert await worker.reports(page) == SEEN
        assert page.lamp == [True]
        assert page.client.assistant is not None and page.client.assistant.startswith("agent-")


@in_loop
async def test_agent_is_dispatched_to_the_rooms_of_toolbridge_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    # One room is open before the worker starts, and one opens while it runs.
    async with server(monkeypatch), Page() as before, Worker("dev") as worker:
        assert await worker.reports(before) == SEEN
        assert before.client.assistant is not None and before.client.assistant.startswith("agent-AJ_")
        async with Page() as later:
            assert await worker.reports(later) == SEEN
            assert before.lamp == later.lamp == [True]
