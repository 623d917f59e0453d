"""A worker that joins a room by itself, as livekit-agents' own command `connect` lets it, over `toolbridge dev`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from ends import connect, dev_server, fresh_room, require_parts
from livekit import rtc
from memory import in_loop
from toolbridge import Client, tool

require_parts("AGENTS_PYTHON")

WORKER = Path(__file__).with_name("connect_worker.py")


@in_loop
async def test_agent_of_the_page_connects_to_a_room_of_toolbridge_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    lamp: list[bool] = []
    reports: asyncio.Queue[Any] = asyncio.Queue()

    async def set_lamp(on: bool) -> dict[str, bool]:
        """Switches the lamp on or off."""
        lamp.append(on)
        return {"on": on}

    @tool(schema={"type": "object"}, description="Reports")
    async def report(seen: Any) -> None:
        reports.put_nowait(seen)

    async with dev_server() as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        name, room = fresh_room(), rtc.Room()
        async with Client(room, [set_lamp, report]) as client:
            await connect(room, name, "phone", "client")
            worker = await asyncio.create_subprocess_exec(
                os.environ["AGENTS_PYTHON"], str(WORKER), "connect", "--room", name
            )
            ended = asyncio.create_task(worker.wait())
            reported = asyncio.create_task(reports.get())
            try:
                await asyncio.wait({ended, reported}, return_when=asyncio.FIRST_COMPLETED)
                assert not ended.done(), f"the worker ended with the status {worker.returncode}"
                assert reported.result() == {"outputs": [["set_lamp", False, '{"on": true}']]}
                assert lamp == [True]
                assert client.assistant is not None and client.assistant.startswith("agent-")
            finally:
                reported.cancel()
                if not ended.done():
                    worker.terminate()
                await ended
        await room.disconnect()
