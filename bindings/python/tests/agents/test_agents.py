"""A worker of livekit-agents, dispatched to a room, whose agent has the tools of the clients in the room."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from ends import connect, fresh_room, require_parts, token
from livekit import rtc
from memory import in_loop
from toolbridge import Client, ToolContext, ToolError, tool

require_parts("AGENTS_PYTHON")

WORKER = Path(__file__).with_name("worker.py")


class Phone:
    def __init__(self) -> None:
        self.turns: asyncio.Queue[Any] = asyncio.Queue()
        self.reports: asyncio.Queue[Any] = asyncio.Queue()
        self.stopped: asyncio.Queue[Any] = asyncio.Queue()
        self.go = asyncio.Event()

    def tools(self) -> list[Any]:
        any_object = {"type": "object"}
        report = tool(schema=any_object, name="report", description="Reports")(self.report)
        goes_on = tool(barge_in="report")(self.goes_on)
        return [self.next_turn, report, self.echo, self.fail, self.hang, goes_on, self.steps, self.release, own, dotted, door_dotted, door, wrong]

    async def next_turn(self) -> Any:
        """Returns the next turn."""
        return await self.turns.get()

    async def report(self, seen: Any) -> None:
        self.reports.put_nowait(seen)

    async def echo(self, text: str) -> str:
        """Returns the text."""
        return text

    async def fail(self) -> None:
        """Fails."""
        raise ToolError("the lamp is broken", code="lamp_broken")

    async def hang(self, cx: ToolContext) -> None:
        """Hangs."""
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.put_nowait(cx.stop_reason)

    async def goes_on(self) -> str:
        """Goes on when the user interrupts."""
        await self.go.wait()
        return "late"

    async def steps(self, cx: ToolContext) -> str:
        """Works in steps."""
        cx.progress("half")
        await self.go.wait()
        return "done"

    async def release(self) -> None:
        """Lets `steps` end."""
        self.go.set()

    async def turn(self, *calls: Any, **more: Any) -> Any:
        """Lets the model ask for calls, and returns what it saw."""
        named = [{"tool": name, "arguments": arguments} for name, arguments in calls]
        self.turns.put_nowait({"calls": named, **more})
        return await self.reports.get()


@tool(name="own", description="Has the name of a tool of the agent")
async def own() -> str:
    return "not the agent's"


@tool(name="lamp.on", description="Has a name that models do not accept")
async def dotted() -> str:
    return "on"


@tool(name="door.open", description="Would have the name of another tool of the room")
async def door_dotted() -> str:
    return "dotted"


@tool(name="door__open", description="Has the name that it would have")
async def door() -> str:
    return "exact"


@tool(name="lk_agents_cancel_task", description="Has the name of a tool of the framework")
async def wrong() -> str:
    return "wrong"


@pytest.mark.parametrize("joins", ["the job's room", "the job's room by itself", "another room by itself"])
@in_loop
async def test_agent_has_the_tools_of_the_room_and_its_model_reads_their_outcomes(joins: str) -> None:
    name, phone, room = fresh_room(), Phone(), rtc.Room()
    job_room = fresh_room() if joins.startswith("another") else name
    env = {**os.environ, "JOIN_TOKEN": token(name, "helper", "assistant")} if joins.endswith("itself") else None
    client = Client(room, phone.tools())
    await connect(room, name, "phone", "client")
    worker = await asyncio.create_subprocess_exec(
        os.environ["AGENTS_PYTHON"], str(WORKER), "[]", job_room, stdin=asyncio.subprocess.PIPE, env=env
    )
    try:
        dotted = "door__open_3c2fde1b"
        said = {"text": "Grüße"}
        seen = await phone.turn((dotted, {}), ("door__open", {}), ("echo", said), ("lamp__on", {}), ("own", {}))
        assert sorted(seen["outputs"]) == [
            ["door__open", False, '{"value": "exact"}'],
            [dotted, False, '{"value": "dotted"}'],
            ["echo", False, '{"value": "Grüße"}'],
            ["lamp__on", False, '{"value": "on"}'],
            ["own", False, "mine"],
        ]
        assert sorted(seen["tools"]) == sorted(
            ["own", "next_turn", "report", "echo", "fail", "hang", "goes_on", "steps", "release", "lamp__on", "door__open"]
            + [dotted, "lk_agents_cancel_task", "lk_agents_get_running_tasks"]
        )
        assert seen["schema"]["parameters"]["required"] == ["text"]
        assert (client.assistant == "helper") is (env is not None)

        (output,) = (await phone.turn(("fail", {})))["outputs"]
        assert output == ["fail", True, "the lamp is broken"]
        (output,) = (await phone.turn(("echo", {"text": 1})))["outputs"]
        assert output == ["echo", True, "text: it must be a string. Correct the arguments, and call again."]

        # Interrupted speech is a barge-in.
        await phone.turn(("hang", {}), interrupt=True)
        assert await phone.stopped.get() == "barge_in"
        await phone.turn(("goes_on", {}), interrupt=True)
        phone.go.set()
        phone.turns.put_nowait({"late": True})
        assert (await phone.reports.get())["late"] == [["goes_on", '{"value": "late"}', False]]

        # Other tools are offered, and another client offers one of them, too.
        client.offer([it for it in phone.tools() if getattr(it, "__name__", "") not in ("fail", "hang")])
        second_room = rtc.Room()

        async def echo(text: str) -> str:
            """Returns the text."""
            return f"tv: {text}"

        async with Client(second_room, [echo]):
            await connect(second_room, name, "tv", "client")
            seen = await phone.turn(("own", {}), owners={"echo": ["phone", "tv"], "fail": []})
            assert seen["schema"]["parameters"]["required"] == ["text", "owner"]
            assert seen["schema"]["parameters"]["properties"]["owner"]["enum"] == ["phone", "tv"]
            assert not {"fail", "hang"} & set(seen["tools"])
            # What the model has called stays in its memory, also if the tool is gone.
            assert {"echo", "lamp__on", "own", "fail"} <= set(seen["history"]), seen["history"]
            (output,) = (await phone.turn(("echo", {"text": "a", "owner": "tv"})))["outputs"]
            assert output == ["echo", False, '{"value": "tv: a"}']
            # What the model reads names the argument that it has.
            (output,) = (await phone.turn(("echo", {"text": "a"})))["outputs"]
            text = 'several clients offer it: "phone", "tv"; name one of them in the argument `owner`. Nothing ran.'
            assert output == ["echo", True, text]

        phone.go.clear()
        seen = await phone.turn(("steps", {}), progress=True)
        (first, *_) = seen["outputs"]
        assert first[:2] == ["steps", False] and "half" in first[2], seen["outputs"]
        phone.turns.put_nowait({"done": True})
    finally:
        assert worker.stdin is not None
        worker.stdin.close()
        await worker.wait()
        await client.aclose()
        await room.disconnect()
