"""Both ends in real rooms, over LiveKit's SDK; the other end is toolbridge's command line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from ends import TOOLS, Program, connect, fresh_room, require_parts
from livekit import rtc
from memory import in_loop, next_event
from toolbridge import (
    Assistant,
    CallError,
    CallTimeout,
    Cancelled,
    Client,
    Closed,
    Lost,
    NotAllowed,
    ToolContext,
    ToolError,
    ToolFailed,
    TooLarge,
    UnknownTool,
    tool,
)

require_parts()

MAX = 16 * 1024 * 1024

#: The time limit of a call with a frame of the largest size, in seconds. LiveKit's SDK takes 4 to 5 s of CPU time to send one, in its
#: own threads, which is a minute on a machine that is busy with other things.
LARGEST_LIMIT = 120

#: The SDK's scenario of a full reconnect, which gives the participant another sid.
FULL_RECONNECT = 7


class Phone:
    """The tools of a client, and what they have seen."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.changed = asyncio.Event()
        self.go = asyncio.Event()

    def note(self, what: str) -> None:
        self.seen.append(what)
        self.changed.set()

    async def until(self, what: str) -> None:
        while what not in self.seen:
            self.changed.clear()
            await self.changed.wait()
        self.seen.remove(what)

    def tools(self) -> list[Any]:
        return [self.echo(), self.length(), self.add, self.fail, self.broken, self.hang, self.steps, self.block, self.remove()]

    def echo(self) -> Any:
        return tool(schema={"type": "object"}, name="echo", description="Returns its arguments")(lambda arguments: arguments)

    def length(self) -> Any:
        @tool(schema={"type": "object"}, description="Returns the length of the text")
        def length(arguments: Any) -> int:
            return len(arguments["text"])

        return length

    async def add(self, a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    def fail(self) -> None:
        """Fails."""
        raise ToolError("the watch is out of range", code="out_of_range")

    async def broken(self) -> None:
        """Fails, too."""
        raise RuntimeError("secret")

    async def hang(self, cx: ToolContext) -> None:
        """Hangs."""
        self.note("hang")
        try:
            await asyncio.Event().wait()
        finally:
            self.note(f"stopped: {cx.stop_reason}")

    async def steps(self, cx: ToolContext) -> str:
        """Works in steps."""
        cx.progress("half")
        await self.go.wait()
        return "done"

    async def block(self, seconds: float) -> str:
        """Blocks the loop."""
        time.sleep(seconds)
        return "done"

    def remove(self) -> Any:
        @tool(destructive=True)
        def remove(no: bool = False, never: bool = False) -> str:
            """Removes it."""
            return "gone"

        return remove

    async def consent(self, ask: Any) -> bool:
        if ask.arguments.get("never"):
            self.note("asked")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.note("withdrawn")
                raise
        return not ask.arguments.get("no")


@asynccontextmanager
async def python_client(name: str) -> AsyncIterator[tuple[Phone, Client, rtc.Room]]:
    phone, room = Phone(), rtc.Room()
    async with Client(room, phone.tools(), consent=phone.consent) as client:
        await connect(room, name, "phone", "client")
        yield phone, client, room
    await room.disconnect()


@asynccontextmanager
async def python_assistant(name: str, client: str = "phone") -> AsyncIterator[tuple[Assistant, rtc.Room]]:
    room = rtc.Room()
    await connect(room, name, "agent", "assistant")
    async with Assistant(room) as bot:
        await bot.ready(client, timeout=20)
        yield bot, room
    await room.disconnect()


@asynccontextmanager
async def assistant_program(name: str) -> AsyncIterator[Program]:
    async with Program("assistant", "--room", name, "--identity", "agent", "--client", "phone") as agent:
        await agent.line(lambda line: line.get("event") == "ready" and line["owner"] == "phone")
        yield agent


@asynccontextmanager
async def client_program(name: str) -> AsyncIterator[Program]:
    async with Program("client", "--room", name, "--identity", "phone", "--tools", str(TOOLS)) as phone:
        yield phone


@in_loop
async def test_command_line_calls_the_tools_of_a_python_client() -> None:
    name = fresh_room()
    async with python_client(name) as (phone, _, _), assistant_program(name) as agent:

        async def refused(tool: str, arguments: Any = {}, /, *, more: Any = {}, **fields: Any) -> None:
            line = await agent.call(tool, arguments, **more)
            assert "error" in line
            assert {field: line["error"].get(field) for field in fields} == fields, line

        assert (await agent.call("echo", {"a": [1, "ö", None]}))["value"] == {"a": [1, "ö", None]}
        assert (await agent.call("add", {"a": 2}))["value"] == {"value": 3}
        await refused("fail", code="out_of_range", message="the watch is out of range", mayHaveRun=True)
        await refused("broken", code="execution_error", message="the tool failed")
        await refused("add", {"a": "x"}, code="invalid_parameters", message="a: it must be a number", mayHaveRun=False)
        await refused("nothing", more={"ownerWaitMs": 100}, code="unknown_tool", mayHaveRun=False)
        await refused("hang", more={"timeoutMs": 300}, code="timeout")
        await phone.until("stopped: deadline")

        hang = agent.begin("hang")
        await agent.progress(hang)
        agent.say({"type": "cancel", "id": hang})
        assert (await agent.result(hang))["error"]["code"] == "cancelled"
        await phone.until("stopped: caller")

        hang = agent.begin("hang", turn=1)
        await agent.progress(hang)
        agent.say({"type": "barge_in", "turn": 1})
        assert (await agent.result(hang))["error"]["code"] == "cancelled"
        await phone.until("stopped: barge_in")

        steps = agent.begin("steps")
        await agent.progress(steps, "half")
        phone.go.set()
        assert (await agent.result(steps))["value"] == {"value": "done"}

        assert (await agent.call("remove"))["value"] == {"value": "gone"}
        await refused("remove", {"no": True}, code="permission_denied", mayHaveRun=False)
        asked = agent.begin("remove", {"never": True})
        await phone.until("asked")
        agent.say({"type": "cancel", "id": asked})
        await phone.until("withdrawn")


@in_loop
async def test_frames_of_14_kb_to_16_mib_pass_to_a_python_client_and_back() -> None:
    name = fresh_room()
    async with python_client(name), assistant_program(name) as agent:
        for size in (14_000, 15_001, 1024 * 1024):
            result = await agent.call("echo", {"text": "a" * size}, timeoutMs=30_000)
            assert len(result["value"]["text"]) == size
        result = await agent.call("length", {"text": "a" * (MAX - 1_000)}, timeoutMs=LARGEST_LIMIT * 1000)
        assert result.get("value") == {"value": MAX - 1_000}, result


@in_loop
async def test_python_assistant_calls_the_tools_of_the_command_line() -> None:
    name = fresh_room()
    async with client_program(name), python_assistant(name) as (bot, _):
        assert sorted(f"{it.owner}.{it.tool.name}" for it in bot.tools()) == [
            "phone.echo",
            "phone.fail",
            "phone.hang",
            "phone.length",
        ]
        assert await bot.call("echo", {"a": [1, "ö"]}) == {"a": [1, "ö"]}
        with pytest.raises(ToolFailed) as failed:
            await bot.call("fail")
        assert (failed.value.code, failed.value.may_have_run) == ("execution_error", True)
        with pytest.raises(UnknownTool) as unknown:
            await bot.call("nothing", owner_wait=0.1)
        assert not unknown.value.may_have_run
        with pytest.raises((CallTimeout, ToolFailed)) as late:
            await bot.call("hang", timeout=0.3)
        assert (late.value.code, late.value.may_have_run) == ("timeout", True)

        stopped = asyncio.create_task(next_event(bot, "settled", lambda event: event["tool"] == "hang"))
        started = asyncio.Event()
        call = asyncio.create_task(bot.call("hang", on_progress=lambda _: started.set()))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await stopped)["outcome"] == "cancelled"

        # A program may write 1 MiB.
        for size in (14_000, 15_001, 1_000_000):
            assert len((await bot.call("echo", {"text": "a" * size}))["text"]) == size
        largest = MAX - 1_000
        assert await bot.call("length", {"text": "a" * largest}, timeout=LARGEST_LIMIT) == {"value": largest + len('{"text":""}')}
        with pytest.raises(TooLarge) as large:
            await bot.call("length", {"text": "a" * MAX})
        assert large.value.max == MAX and not large.value.may_have_run


@in_loop
async def test_python_calls_python_with_progress_consent_cancellation_and_barge_in() -> None:
    name = fresh_room()
    async with python_client(name) as (phone, client, _), python_assistant(name) as (bot, _):
        messages: list[Any] = []

        def report(progress: Any) -> None:
            messages.append(progress.message)
            if progress.message == "half":
                phone.go.set()

        assert await bot.call("steps", on_progress=report) == {"value": "done"}
        assert "half" in messages
        assert client.assistant == "agent"
        assert await bot.call("remove") == {"value": "gone"}
        with pytest.raises(ToolFailed) as failed:
            await bot.call("remove", {"no": True})
        assert (failed.value.code, failed.value.may_have_run) == ("permission_denied", False)
        call = asyncio.create_task(bot.call("hang"))
        await phone.until("hang")
        call.cancel()
        await phone.until("stopped: caller")
        turn = bot.turn()
        call = asyncio.create_task(turn.call("hang"))
        await phone.until("hang")
        turn.barge_in()
        await phone.until("stopped: barge_in")
        assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], Cancelled)
        text = "ü" * 1024 * 1024
        assert (await bot.call("echo", {"text": text}))["text"] == text


@in_loop
async def test_client_that_joins_again_under_another_sid_keeps_its_call() -> None:
    name = fresh_room()
    async with python_client(name) as (phone, _, room), python_assistant(name) as (bot, agent):
        for who in (room, agent):
            phone.go.clear()
            half = asyncio.Event()
            call = asyncio.create_task(bot.call("steps", timeout=40, on_progress=lambda it: half.set()))
            await half.wait()
            reconnected, before = asyncio.Event(), who.local_participant.sid
            who.once("reconnected", reconnected.set)
            await who.simulate_scenario(FULL_RECONNECT)  # type: ignore[arg-type]
            await reconnected.wait()
            phone.go.set()
            assert await call == {"value": "done"}
            assert who.local_participant.sid != before
            assert await bot.call("echo", {"a": 2}) == {"a": 2}


@in_loop
async def test_client_whose_handler_blocks_the_loop_is_late_and_lost_only_after_the_grace_period() -> None:
    name = fresh_room()
    async with python_client(name) as (_, client, _), assistant_program(name) as agent:
        blocks = agent.begin("block", {"seconds": 3}, timeoutMs=30_000)
        others = [agent.begin("add", {"a": n}, timeoutMs=30_000) for n in range(3)]
        assert (await agent.result(blocks))["value"] == {"value": "done"}
        assert [(await agent.result(id))["value"] for id in others] == [{"value": n + 1} for n in range(3)]
        assert client.stats()["blocked_loop"] >= 1
        # The grace period is 5 s. Afterwards the client is called again.
        error = (await agent.call("block", {"seconds": 10}, timeoutMs=30_000))["error"]
        assert (error["code"], error["mayHaveRun"]) == ("lost", True)
        assert (await agent.call("add", {"a": 1}, timeoutMs=30_000, ownerWaitMs=20_000))["value"] == {"value": 2}


@in_loop
async def test_token_without_can_publish_data_is_not_allowed_and_an_event_names_the_grant() -> None:
    name, room = fresh_room(), rtc.Room()
    async with client_program(name), Assistant(room, clients=["phone"]) as bot:
        not_allowed = asyncio.create_task(next_event(bot, "not_allowed"))
        await asyncio.sleep(0)
        await connect(room, name, "agent", "assistant", canPublishData=False)
        with pytest.raises(NotAllowed) as error:
            await bot.call("echo", timeout=10)
        assert not error.value.may_have_run
        assert "canPublishData" in (await not_allowed)["message"]
    await room.disconnect()


@in_loop
async def test_participant_whose_token_hides_it_is_warned() -> None:
    room = rtc.Room()
    warnings: list[str] = []
    async with Client(room) as client:
        client.on("warning", lambda event: warnings.append(event["message"]))
        await connect(room, fresh_room(), "phone", "client", hidden=True)
        while not warnings:
            await asyncio.sleep(0.01)
        assert warnings[0].startswith("the token of phone hides it: ") and warnings[0].endswith("`hidden`")
    await room.disconnect()


async def test_assistant_whose_token_has_no_role_gets_no_tools_and_the_client_names_the_grant() -> None:
    name, room = fresh_room(), rtc.Room()
    async with python_client(name) as (_, client, _):
        unaccepted = asyncio.create_task(next_event(client, "unaccepted", lambda event: event.get("by") == "agent"))
        async with Assistant(room, clients=["phone"]) as bot:
            await connect(room, name, "agent", None)
            with pytest.raises(CallError) as error:
                await bot.call("echo", owner_wait=2, timeout=10)
            assert not error.value.may_have_run
            assert "toolbridge.role" in (await unaccepted)["message"]
        await room.disconnect()


@in_loop
async def test_room_that_is_left_ends_open_calls_as_closed() -> None:
    name = fresh_room()
    async with python_client(name) as (phone, _, _), python_assistant(name) as (bot, room):
        closed = asyncio.create_task(next_event(bot, "closed"))
        call = asyncio.create_task(bot.call("hang"))
        await phone.until("hang")
        await room.disconnect()
        with pytest.raises(Closed) as error:
            await call
        assert error.value.may_have_run
        assert (await closed)["reason"]["kind"] == "closed"
