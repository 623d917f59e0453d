"""Calls, with the real core in a room in memory."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import enum
import os
import pickle
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Annotated, Any, Literal, Optional

import pydantic
import pytest
from memory import Ends, in_loop, next_event
from toolbridge import (
    Busy,
    CallTimeout,
    Cancelled,
    Closed,
    Detached,
    Progress,
    ToolContext,
    ToolError,
    ToolFailed,
    TooLarge,
    TurnOver,
    UnknownTool,
    tool,
)

MAX = 16 * 1024 * 1024


@tool(name="echo", schema={"type": "object"}, description="Returns its arguments")
def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


async def set_lamp(on: bool, brightness: int = 100) -> dict[str, Any]:
    """Switches the lamp on or off."""
    return {"on": on, "brightness": brightness}


@in_loop
async def test_async_and_plain_functions_are_called_with_their_arguments() -> None:
    threads: list[threading.Thread] = []

    def read_meter(room: str) -> float:
        """Reads the meter."""
        threads.append(threading.current_thread())
        return 1.5

    async with Ends([set_lamp, read_meter, echo]) as ends:
        assert await ends.bot.call("set_lamp", {"on": True}) == {"on": True, "brightness": 100}
        assert await ends.bot.call("set_lamp", {"on": False, "brightness": 3.0}, to="phone", timeout=5) == {
            "on": False,
            "brightness": 3,
        }
        assert await ends.bot.call("read_meter", {"room": "hall"}) == {"value": 1.5}
        assert threads[0] is not threading.main_thread()
        assert await ends.bot.call("echo", {"a": [1, "ö", None]}) == {"a": [1, "ö", None]}


@in_loop
async def test_offered_tools_have_the_schemas_of_their_hints() -> None:
    async with Ends([set_lamp]) as ends:
        (offered,) = ends.bot.tools()
        assert (offered.owner, offered.tool.name) == ("phone", "set_lamp")
        assert offered.tool.description == "Switches the lamp on or off."
        assert offered.tool.parameters == {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "brightness": {"type": "integer", "default": 100}},
            "required": ["on"],
            "additionalProperties": False,
        }


@in_loop
async def test_arguments_that_do_not_match_the_hints_are_refused_and_nothing_runs() -> None:
    ran = []

    def all_kinds(
        text: Annotated[str, "A text"],
        color: Literal["red", "blue"] = "red",
        number: Optional[float] = None,
        many: list[int] = [],
        table: dict[str, bool] = {},
        anything: Any = None,
    ) -> None:
        """Takes all kinds."""
        ran.append((text, color, number, many, table, anything))

    async with Ends([all_kinds]) as ends:
        assert ends.bot.tools()[0].tool.parameters["properties"]["text"] == {"type": "string", "description": "A text"}
        right = {"text": "a", "color": "blue", "number": 1, "many": [1, 2], "table": {"a": True}, "anything": {"b": 1}}
        assert await ends.bot.call("all_kinds", right) == {"value": None}
        assert ran.pop() == ("a", "blue", 1.0, [1, 2], {"a": True}, {"b": 1})
        for wrong, message in (
            ({}, "text: it is missing"),
            ({"text": 1}, "text: it must be a string"),
            ({"text": "a", "color": "green"}, "color: it must be one of 'red', 'blue'"),
            ({"text": "a", "number": "1"}, "number: it must be a number, or number: it must be null"),
            ({"text": "a", "many": [1, True]}, "many[1]: it must be a number"),
            ({"text": "a", "many": [1.5]}, "many[0]: it must be a whole number"),
            ({"text": "a", "table": {"b": 1}}, "table.b: it must be a boolean"),
            ({"text": "a", "more": 1}, "more: there is no such argument"),
        ):
            with pytest.raises(ToolFailed) as failed:
                await ends.bot.call("all_kinds", wrong)
            error = failed.value
            assert (error.code, str(error), error.may_have_run) == ("invalid_parameters", message, False)
        assert ran == []


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Place(pydantic.BaseModel):
    room: str
    floor: int = pydantic.Field(default=0, ge=0)


@dataclasses.dataclass
class Answer:
    place: Place
    levels: tuple[int, ...]


@in_loop
async def test_pydantic_gives_the_schema_of_further_types_and_checks_them() -> None:
    async def heat(place: Place, level: Level = Level.LOW) -> Answer:
        """Heats a place."""
        assert isinstance(place, Place) and isinstance(level, Level)
        return Answer(place, (1, 2))

    async with Ends([heat]) as ends:
        parameters = ends.bot.tools()[0].tool.parameters
        assert parameters["$defs"]["Place"]["properties"]["floor"]["minimum"] == 0
        result = await ends.bot.call("heat", {"place": {"room": "hall"}, "level": "high"})
        assert result == {"place": {"room": "hall", "floor": 0}, "levels": [1, 2]}
        with pytest.raises(ToolFailed) as failed:
            await ends.bot.call("heat", {"place": {"room": "hall", "floor": -1}})
        assert failed.value.code == "invalid_parameters"
        assert str(failed.value).startswith("place.floor: ")


@in_loop
async def test_schema_of_the_author_is_checked_by_its_function_only() -> None:
    def validate(arguments: dict[str, Any]) -> object:
        return "n: must be a number" if not isinstance(arguments.get("n"), int) else True

    @tool(schema={"type": "object"}, description="Strict", validate=validate)
    async def strict(arguments: dict[str, Any], cx: ToolContext) -> str:
        return cx.caller

    async with Ends([strict]) as ends:
        assert await ends.bot.call("strict", {"n": 1, "m": 2}) == {"value": "agent"}
        with pytest.raises(ToolFailed, match="n: must be a number"):
            await ends.bot.call("strict", {"n": "x"})


@in_loop
async def test_tool_error_reaches_the_caller_and_the_text_of_other_errors_does_not() -> None:
    @tool
    def out_of_range() -> None:
        """Fails."""
        raise ToolError("the watch is out of range", code="out_of_range", partial={"seen": 1})

    @tool
    async def broken() -> None:
        """Fails, too."""
        raise RuntimeError("the password is hunter2")

    async with Ends([out_of_range, broken]) as ends:
        with pytest.raises(ToolFailed) as failed:
            await ends.bot.call("out_of_range")
        error = failed.value
        assert (error.kind, error.code, str(error)) == ("tool", "out_of_range", "the watch is out of range")
        assert error.partial == {"seen": 1} and error.may_have_run
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), copy.code, copy.partial, str(copy)) == (ToolFailed, error.code, error.partial, str(error))
        event = asyncio.create_task(next_event(ends.app, "tool_failed"))
        with pytest.raises(ToolFailed) as failed:
            await ends.bot.call("broken")
        assert (failed.value.code, str(failed.value)) == ("execution_error", "the tool failed")
        assert (await event)["cause"] == "RuntimeError: the password is hunter2"


@in_loop
async def test_unknown_tool_is_refused() -> None:
    async with Ends([echo]) as ends:
        with pytest.raises(UnknownTool) as failed:
            await ends.bot.call("nothing", owner_wait=0.05)
        assert failed.value.may_have_run is False
        assert isinstance(ends.bot.why_not_offered("nothing"), UnknownTool)


@in_loop
async def test_arguments_that_json_cannot_hold_raise_at_once() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    async with Ends([echo]) as ends:
        sent = len(ends.memory.sent)
        for arguments, text in (
            ({"a": float("nan")}, "arguments.a is nan"),
            ({"a": [1, {"b": b"x"}]}, "arguments.a[1].b is of the type bytes"),
            ({"a": cycle}, "arguments.a[0] contains itself"),
            ({"a": {1, 2}}, "arguments.a is of the type set"),
            ({(1, 2): 1}, "arguments has a key of the type tuple"),
            ({"a": [2**64]}, "arguments.a[0] is an integer of more than 64 bits"),
            ({"a": -(2**63) - 1}, "arguments.a is an integer of more than 64 bits"),
        ):
            with pytest.raises(TypeError) as raised:
                await ends.bot.call("echo", arguments)  # type: ignore[arg-type]
            assert str(raised.value) == f"{text}, which JSON cannot hold"
        with pytest.raises(TypeError, match="must be a dictionary"):
            await ends.bot.call("echo", [1])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="meta.a is inf"):
            await ends.bot.call("echo", meta={"a": float("inf")})
        assert len(ends.memory.sent) == sent


@in_loop
async def test_values_above_16_mib_are_too_large() -> None:
    @tool
    async def make(size: int) -> str:
        """Makes a text."""
        return "a" * size

    async with Ends([echo, make]) as ends:
        with pytest.raises(TooLarge) as large:
            await ends.bot.call("echo", {"text": "a" * MAX})
        assert large.value.max == MAX and (large.value.size or 0) > MAX and not large.value.may_have_run
        with pytest.raises(ToolFailed) as failed:
            await ends.bot.call("make", {"size": MAX})
        assert failed.value.code == "result_too_large"
        text = "ü" * 1024 * 1024
        assert (await ends.bot.call("echo", {"text": text}))["text"] == text
        streams = [packet for packet in ends.memory.sent if packet["kind"] == "stream"]
        assert [packet["from"] for packet in streams] == ["agent", "phone"]
        assert all(len(packet["bytes"]) <= 15_000 for packet in ends.memory.sent if packet["kind"] == "packet")


@in_loop
async def test_frames_of_16_mib_pass_in_both_directions_and_one_byte_more_is_refused() -> None:
    @tool
    async def make(size: int) -> str:
        """Makes a text."""
        return "a" * size

    @tool(schema={"type": "object"}, description="Returns the length of the text")
    async def length(arguments: dict[str, str]) -> int:
        return len(arguments["text"])

    async def send(size: int) -> int:
        """Returns by how much the request is too large, or 0."""
        text = "a" * size
        try:
            assert await ends.bot.call("length", {"text": text}) == {"value": size}
            return 0
        except TooLarge as error:
            assert error.max == MAX and not error.may_have_run
            return (error.size or 0) - MAX

    async def receive(size: int) -> int:
        """Returns by how much the result is too large, or 0."""
        try:
            assert len((await ends.bot.call("make", {"size": size}))["value"]) == size
            return 0
        except ToolFailed as error:
            assert error.code == "result_too_large" and error.may_have_run
            found = [int(number.replace(",", "")) for number in re.findall(r"[\d,]{5,}", str(error))]
            assert MAX in found
            return max(found) - MAX

    async with Ends([make, length]) as ends:
        for attempt in (send, receive):
            # First the value alone is too large, then the frame with it.
            largest = MAX
            while (above := await attempt(largest)) > 0:
                largest -= above
            assert largest > MAX - 1_000
            assert await attempt(largest + 1) == 1


@in_loop
async def test_lossy_packets_leave_room_for_what_end_to_end_encryption_adds() -> None:
    largest = []
    for is_encrypted in (False, True):
        ends = Ends([echo])
        ends.agent._e2ee_manager = SimpleNamespace(enabled=is_encrypted)  # type: ignore[assignment]
        async with ends:
            fits, above = 500, 1_400
            while above - fits > 1:
                size = (fits + above) // 2
                ends.memory.sent.clear()
                await ends.bot.call("echo", {"text": "a" * size})
                is_lossy = any(not it["reliable"] for it in requests(ends))
                fits, above = (size, above) if is_lossy else (fits, size)
            largest.append(fits)
    # LiveKit's envelope with a nonce and the tag of AES-GCM.
    assert largest[0] - largest[1] == 44


def requests(ends: Ends) -> list[Any]:
    return [packet for packet in ends.memory.sent if packet["from"] == "agent" and b"echo" in packet["bytes"]]


@in_loop
async def test_result_that_json_cannot_hold_is_an_execution_error() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    values = {"nan": float("nan"), "bytes": {"a": b"x"}, "cycle": cycle, "set": [{1}]}

    @tool(schema={"type": "object"}, description="Returns a value")
    async def give(arguments: dict[str, str]) -> Any:
        return values[arguments["what"]]

    async with Ends([give]) as ends:
        for what, cause in (
            ("nan", "the result is nan"),
            ("bytes", "the result.a is of the type bytes"),
            ("cycle", "the result[0] contains itself"),
            ("set", "the result[0] is of the type set"),
        ):
            event = asyncio.create_task(next_event(ends.app, "tool_failed"))
            with pytest.raises(ToolFailed) as failed:
                await ends.bot.call("give", {"what": what})
            assert (failed.value.code, str(failed.value)) == ("execution_error", "the tool failed")
            assert (await event)["cause"] == f"TypeError: {cause}, which JSON cannot hold"


@in_loop
async def test_half_of_a_surrogate_pair_becomes_a_replacement_character() -> None:
    name = os.fsdecode(b"caf\xe9")  # of a file whose name is not UTF-8

    @tool(schema={"type": "object"}, description=f"Reads {name}")
    async def read(arguments: dict[str, Any], cx: ToolContext) -> Any:
        cx.progress(name)
        if arguments["what"] == "result":
            return {name: [name, "\ud83d\ude00", "\ude00\ud83d"]}
        if arguments["what"] == "error":
            raise ToolError(name, code="half", partial=[name])
        return open(f"{name}/x")

    async with Ends([read]) as ends:
        (offered,) = ends.bot.tools()
        assert offered.tool.description == "Reads caf\ufffd"
        told: list[Any] = []
        result = await ends.bot.call("read", {"what": "result", name: name}, on_progress=told.append)
        assert result == {"caf\ufffd": ["caf\ufffd", "\U0001f600", "\ufffd\ufffd"]}
        assert [it.message for it in told if it.message] == ["caf\ufffd"]
        with pytest.raises(ToolFailed) as failed:
            await ends.bot.call("read", {"what": "error"})
        assert (failed.value.code, str(failed.value), failed.value.partial) == ("half", "caf\ufffd", {"value": ["caf\ufffd"]})
        event = asyncio.create_task(next_event(ends.app, "tool_failed"))
        with pytest.raises(ToolFailed, match="the tool failed"):
            await ends.bot.call("read", {"what": "file"})
        assert "FileNotFoundError" in (await event)["cause"]


def test_code_of_a_tool_error_is_checked_where_it_is_written() -> None:
    for code in (404, None, "", "not found", "ü", "a" * 65):
        with pytest.raises(TypeError, match="must be a text of 1 to 64 letters"):
            ToolError("no such album", code=code)  # type: ignore[arg-type]
    for code in ("timeout", "cancelled", "lost"):
        with pytest.raises(ValueError, match=f"use another one, such as 'printer_{code}'"):
            ToolError("the printer did not answer", code=code)
    assert ToolError("no such album", code="ENOENT").code == "ENOENT"


@in_loop
async def test_integers_of_64_bits_and_long_digits_in_texts_are_kept() -> None:
    async with Ends([echo]) as ends:
        arguments = {"least": -(2**63), "most": 2**64 - 1, "text": "1" * 30, "float": 0.1234567890123456789}
        assert await ends.bot.call("echo", arguments) == arguments


@pytest.mark.skipif(not hasattr(asyncio, "TaskGroup"), reason="Python 3.11")
@in_loop
async def test_text_of_a_tool_error_in_a_task_group_is_sent() -> None:
    @tool
    async def look() -> None:
        """Looks."""

        async def fail(error: Exception) -> None:
            raise error

        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            outer.create_task(asyncio.sleep(0))
            inner.create_task(fail(ToolError("the watch is out of range", code="out_of_range")))

    async with Ends([look]) as ends:
        with pytest.raises(ToolFailed, match="the watch is out of range") as failed:
            await ends.bot.call("look")
        assert failed.value.code == "out_of_range"


@in_loop
async def test_plain_function_that_wraps_an_async_one_is_cancelled() -> None:
    begun, cleaned = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.set()

    @tool
    def wrapped() -> Any:
        """Hangs."""
        return hang()

    async with Ends([wrapped]) as ends:
        call = asyncio.create_task(ends.bot.call("wrapped"))
        await begun.wait()
        call.cancel()
        await asyncio.wait_for(cleaned.wait(), 5)


@in_loop
async def test_async_functions_that_nobody_would_await_are_refused() -> None:
    async def later(*_: Any) -> Any:
        raise AssertionError("nobody awaits it")

    async with Ends([echo]) as ends:
        with pytest.raises(TypeError, match="`on_progress` must be a plain function, not an `async` one"):
            await ends.bot.call("echo", on_progress=later)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match='the listener of "bound" must be a plain function'):
            ends.app.on("bound", later)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match='the listener of "bound" must be a plain function'):
            ends.app.on("bound")(later)  # type: ignore[arg-type]


@in_loop
async def test_tool_that_ends_in_any_way_has_an_outcome() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    class MuteToolError(ToolError):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def changed() -> ToolError:
        error = ToolError("changed later")
        error.code = 404  # type: ignore[assignment]
        return error

    ends_of: dict[str, Callable[[], BaseException]] = {
        "number": lambda: ToolError("no such album", code=404),  # type: ignore[arg-type]
        "changed": changed,
        "mute": Mute,
        "mute_tool_error": lambda: MuteToolError("x"),
        "cancelled": asyncio.CancelledError,
    }

    @tool
    async def end(how: str) -> None:
        """Ends."""
        raise ends_of[how]()

    async with Ends([end]) as ends:
        for how in ends_of:
            with pytest.raises(ToolFailed) as failed:
                await ends.bot.call("end", {"how": how})
            assert failed.value.code == "execution_error", how


@in_loop
async def test_cancelled_task_cancels_the_handler_which_may_clean_up() -> None:
    begun, cleaned = asyncio.Event(), asyncio.Event()
    reasons: list[Any] = []

    @tool
    async def hang(cx: ToolContext) -> None:
        """Hangs."""
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reasons.append(cx.stop_reason)
            cleaned.set()
            raise

    async with Ends([hang]) as ends:
        call = asyncio.create_task(ends.bot.call("hang"))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await cleaned.wait()
        assert reasons == ["caller"]


@in_loop
async def test_handler_that_hangs_times_out_and_its_task_is_cancelled() -> None:
    stopped: list[Any] = []
    ended = asyncio.Event()

    @tool
    async def hang(cx: ToolContext) -> None:
        """Hangs."""
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(cx.stop_reason)
            ended.set()

    async with Ends([hang]) as ends:
        with pytest.raises((CallTimeout, ToolFailed)) as failed:
            await ends.bot.call("hang", timeout=0.2)
        assert failed.value.code == "timeout" and failed.value.may_have_run
        await ended.wait()
        assert stopped == ["deadline"]


@in_loop
async def test_timeout_of_the_tool_ends_one_run() -> None:
    @tool(timeout=0.1)
    async def hang() -> None:
        """Hangs."""
        await asyncio.Event().wait()

    async with Ends([hang]) as ends:
        with pytest.raises((CallTimeout, ToolFailed), match="100 ms") as failed:
            await ends.bot.call("hang", timeout=30)
        assert failed.value.code == "timeout"


@in_loop
async def test_plain_function_that_is_stopped_sees_it_in_its_context() -> None:
    loop = asyncio.get_running_loop()
    begun, ended = asyncio.Event(), asyncio.Event()
    seen: list[Any] = []

    @tool
    def hang(cx: ToolContext) -> None:
        """Hangs."""
        loop.call_soon_threadsafe(begun.set)
        seen.append((cx.wait_until_stopped(), cx.stop_reason))
        loop.call_soon_threadsafe(ended.set)

    async with Ends([hang]) as ends:
        with ends.bot.turn() as turn:
            call = asyncio.create_task(turn.call("hang"))
            await begun.wait()
            turn.barge_in()
            with pytest.raises(Cancelled) as cancelled:
                await call
            assert cancelled.value.code == "cancelled"
            await ended.wait()
            assert seen == [(True, "barge_in")]


@in_loop
async def test_plain_functions_run_in_a_limited_number_of_threads() -> None:
    go = threading.Event()
    running: list[int] = []
    most = 0

    @tool
    def wait(n: int) -> int:
        """Waits."""
        nonlocal most
        running.append(n)
        most = max(most, len(running))
        go.wait()
        running.remove(n)
        return n

    async with Ends([wait], client={"threads": 2}) as ends:
        progress: asyncio.Queue[Progress] = asyncio.Queue()
        calls = [
            asyncio.create_task(ends.bot.call("wait", {"n": n}, on_progress=progress.put_nowait)) for n in range(4)
        ]
        await progress.get()
        await progress.get()
        with pytest.raises(Busy, match="had no place to run within its limit of 200 ms") as busy:
            await ends.bot.call("wait", {"n": 9}, timeout=0.2)
        assert not busy.value.may_have_run
        go.set()
        assert [(await call)["value"] for call in calls] == [0, 1, 2, 3]
        assert most == 2


@in_loop
async def test_plain_function_whose_call_is_cancelled_while_it_waits_for_a_thread_never_starts() -> None:
    loop = asyncio.get_running_loop()
    begun, go = asyncio.Event(), threading.Event()
    ran: list[int] = []

    @tool
    def wait(n: int) -> int:
        """Waits."""
        ran.append(n)
        loop.call_soon_threadsafe(begun.set)
        go.wait()
        return n

    async with Ends([wait], client={"threads": 1}) as ends:
        first = asyncio.create_task(ends.bot.call("wait", {"n": 1}))
        await begun.wait()
        turn = ends.bot.turn()
        second = asyncio.create_task(turn.call("wait", {"n": 2}))
        await next_event(ends.bot, "delivered")
        third = asyncio.create_task(ends.bot.call("wait", {"n": 3}))
        turn.barge_in()
        with pytest.raises(Cancelled):
            await second
        go.set()
        assert [await first, await third] == [{"value": 1}, {"value": 3}]
        assert ran == [1, 3]


@in_loop
async def test_context_variables_of_a_plain_function_are_those_of_its_task() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name")

    @tool
    def read() -> str:
        """Reads the variable."""
        return name.get("none")

    name.set("outer")
    async with Ends([read]) as ends:
        assert await ends.bot.call("read") == {"value": "outer"}


@in_loop
async def test_progress_reaches_the_caller_in_order() -> None:
    loop = asyncio.get_running_loop()
    go = asyncio.Event()

    @tool
    async def steps(cx: ToolContext) -> str:
        """Works."""
        cx.progress("half", content={"n": 1})
        await go.wait()
        return "done"

    @tool
    def plain(cx: ToolContext) -> str:
        """Works in a thread."""
        cx.progress("half")
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result()
        return "done"

    async with Ends([steps, plain]) as ends:
        for name, content in (("steps", {"n": 1}), ("plain", None)):
            go.clear()
            seen: list[Progress] = []

            def report(progress: Progress) -> None:
                seen.append(progress)
                if progress.message == "half":
                    go.set()

            assert await ends.bot.call(name, on_progress=report) == {"value": "done"}
            assert [(it.status, it.message, it.content) for it in seen if it.message] == [("in_progress", "half", content)]


@in_loop
async def test_barge_in_cancels_finishes_or_reports_as_the_tool_says() -> None:
    begun: list[str] = []
    ended: list[str] = []
    both, go = asyncio.Event(), asyncio.Event()

    async def work(name: str) -> str:
        begun.append(name)
        if len(begun) == 3:
            both.set()
        await go.wait()
        ended.append(name)
        return name

    @tool(name="cancels", description="Is cancelled")
    async def cancels() -> str:
        return await work("cancels")

    @tool(name="finishes", description="Finishes", barge_in="finish")
    async def finishes() -> str:
        return await work("finishes")

    @tool(name="reports", description="Reports later", barge_in="report")
    async def reports() -> str:
        return await work("reports")

    async with Ends([cancels, finishes, reports]) as ends:
        turn = ends.bot.turn()
        calls = {name: asyncio.create_task(turn.call(name)) for name in ("cancels", "finishes", "reports")}
        await both.wait()
        turn.barge_in()
        with pytest.raises(Cancelled):
            await calls["cancels"]
        with pytest.raises(Cancelled):
            await calls["finishes"]
        with pytest.raises(Detached) as detached:
            await calls["reports"]
        assert detached.value.may_have_run
        with pytest.raises(TurnOver):
            await turn.call("reports")
        late = asyncio.create_task(next_event(ends.bot, "late_result"))
        go.set()
        assert (await late)["tool"] == "reports"
        (result,) = ends.bot.late_results()
        assert (result.tool, result.owner, result.value) == ("reports", "phone", {"value": "reports"})
        assert result.error is None and begun == ["cancels", "finishes", "reports"] and ended == ["finishes", "reports"]
        assert ends.bot.late_results() == []


@in_loop
async def test_consent_is_asked_of_a_person_and_withdrawn_if_the_caller_cancels() -> None:
    asked, withdrawn = asyncio.Event(), asyncio.Event()
    answers: list[Any] = []

    async def consent(ask: Any) -> bool:
        answers.append(ask)
        if ask.arguments.get("never"):
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                withdrawn.set()
                raise
        return not ask.arguments.get("no")

    @tool(destructive=True)
    def remove(no: bool = False, never: bool = False) -> str:
        """Removes it."""
        return "gone"

    async with Ends([remove], client={"consent": consent}) as ends:
        assert await ends.bot.call("remove") == {"value": "gone"}
        assert answers[0].text == 'agent wants to run "remove": Removes it.\n{}'
        assert (answers[0].caller, answers[0].tool["name"]) == ("agent", "remove")
        with pytest.raises(ToolFailed) as failed:
            await ends.bot.call("remove", {"no": True})
        assert (failed.value.code, failed.value.may_have_run) == ("permission_denied", False)
        with pytest.raises(ToolFailed) as failed:
            await ends.bot.call("remove", {"no": "x"})
        assert failed.value.code == "invalid_parameters" and len(answers) == 2
        call = asyncio.create_task(ends.bot.call("remove", {"never": True}))
        await asked.wait()
        call.cancel()
        await withdrawn.wait()


@in_loop
async def test_question_shows_all_that_runs_or_is_refused() -> None:
    asked: list[Any] = []
    ran: list[Any] = []

    @tool(schema={"type": "object"}, description="Pays", destructive=True)
    def pay(arguments: dict[str, Any]) -> None:
        ran.append(arguments)

    def consent(ask: Any) -> bool:
        asked.append(ask.text)
        return True

    async with Ends([pay], client={"consent": consent}) as ends:
        await ends.bot.call("pay", {"note": "thank you " * 1_000, "to": "mallory"})
        assert asked[0].endswith('"to": "mallory"\n}') and asked[0].startswith('agent wants to run "pay": Pays\n{\n')
        await ends.bot.call("pay", {"to": "alice\u202e moc.live@\u2066\x1b[2J\n"})
        assert asked[1].endswith(r'"to": "alice\u{202e} moc.live@\u{2066}\u001b[2J\n"' + "\n}"), asked[1]
        warning = asyncio.create_task(next_event(ends.app, "warning"))
        with pytest.raises(ToolFailed) as failed:
            await ends.bot.call("pay", {"note": "thank you " * 1_700, "to": "mallory"})
        assert failed.value.code == "permission_denied" and not failed.value.may_have_run
        assert "16 KiB" in (await warning)["message"]
        assert (len(asked), len(ran)) == (2, 2)


@in_loop
async def test_plain_consent_function_runs_in_a_thread_and_one_that_raises_refuses() -> None:
    threads: list[threading.Thread] = []

    def consent(ask: Any) -> bool:
        threads.append(threading.current_thread())
        if ask.arguments.get("fails"):
            raise RuntimeError("no terminal")
        return True

    @tool(destructive=True)
    async def remove(fails: bool = False) -> str:
        """Removes it."""
        return "gone"

    async with Ends([remove], client={"consent": consent}) as ends:
        assert await ends.bot.call("remove") == {"value": "gone"}
        assert threads[0] is not threading.main_thread()
        warning = asyncio.create_task(next_event(ends.app, "warning"))
        with pytest.raises(ToolFailed) as failed:
            await ends.bot.call("remove", {"fails": True})
        assert failed.value.code == "permission_denied"
        assert "RuntimeError: no terminal" in (await warning)["message"]


@in_loop
async def test_tool_without_a_person_to_ask_is_not_offered() -> None:
    @tool(consent="always")
    async def remove() -> str:
        """Removes it."""
        return "gone"

    ends = Ends([remove, echo])
    left_out = asyncio.create_task(next_event(ends.app, "left_out"))
    await asyncio.sleep(0)
    async with ends:
        (entry,) = (await left_out)["tools"]
        assert entry["tool"] == "remove" and "consent" in entry["why"]
        with pytest.raises(UnknownTool, match="consent"):
            await ends.bot.call("remove")


@in_loop
async def test_more_calls_than_may_run_wait_and_more_than_may_wait_are_busy() -> None:
    go = asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        await go.wait()
        return "done"

    async with Ends([wait], client={"caps": {"running_jobs": 1, "waiting_jobs": 1}}) as ends:
        calls = [asyncio.create_task(ends.bot.call("wait")) for _ in range(3)]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        (busy,) = done
        assert getattr(busy.exception(), "code", None) == "busy"
        go.set()
        rest = await asyncio.gather(*calls, return_exceptions=True)
        assert rest.count({"value": "done"}) == 2


@in_loop
async def test_tools_that_are_offered_later_replace_the_others() -> None:
    async with Ends([set_lamp]) as ends:
        changed = asyncio.create_task(next_event(ends.bot, "tools_changed"))
        ends.app.offer([echo])
        assert (await changed)["owner"] == "phone"
        assert [it.tool.name for it in ends.bot.tools()] == ["echo"]
        with pytest.raises(ValueError, match="named twice"):
            ends.app.offer([echo, echo])
        assert await ends.bot.call("echo", {"a": 1}) == {"a": 1}


@in_loop
async def test_own_tools_of_an_assistant_are_called_without_a_client() -> None:
    async with Ends([], assistant={"tools": [echo]}) as ends:
        assert await ends.bot.call("echo", {"a": 1}) == {"a": 1}


@in_loop
async def test_meta_reaches_the_tool() -> None:
    @tool
    async def read(cx: ToolContext) -> Any:
        """Returns what was sent along."""
        return cx.meta

    async with Ends([read]) as ends:
        assert await ends.bot.call("read", meta={"trace": "x"}) == {"trace": "x"}
        assert await ends.bot.call("read") == {}


@in_loop
async def test_view_reaches_the_client() -> None:
    async with Ends([echo]) as ends:
        view = asyncio.create_task(next_event(ends.app, "view"))
        ends.bot.show_view("map", {"x": 1}, "a map")
        event = await view
        assert (event["by"], event["view"], event["content"], event["text"]) == ("agent", "map", {"x": 1}, "a map")


@in_loop
async def test_client_may_ask_to_stop_if_the_assistant_allows_it() -> None:
    begun = asyncio.Event()

    @tool
    async def hang() -> None:
        """Hangs."""
        begun.set()
        await asyncio.Event().wait()

    async with Ends([hang], assistant={"allow_stop": lambda who: who["identity"] == "phone"}) as ends:
        call = asyncio.create_task(ends.bot.call("hang"))
        await begun.wait()
        ends.app.ask_to_stop()
        with pytest.raises(Cancelled):
            await call


@in_loop
async def test_closed_participants_refuse_calls_and_end_open_ones() -> None:
    begun = asyncio.Event()

    @tool
    async def hang() -> None:
        """Hangs."""
        begun.set()
        await asyncio.Event().wait()

    async with Ends([hang]) as ends:
        call = asyncio.create_task(ends.bot.call("hang"))
        await begun.wait()
        await ends.bot.aclose()
        with pytest.raises(Closed) as closed:
            await call
        assert closed.value.may_have_run
        with pytest.raises(Closed) as closed:
            await ends.bot.call("hang")
        assert not closed.value.may_have_run


@in_loop
async def test_exception_of_a_tool_is_logged_at_its_own_side_unless_somebody_listens(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        """Breaks."""
        raise KeyError("a secret of this program")

    async def said() -> None:
        """Says what is wrong."""
        raise ToolError("the watch is out of range")

    async with Ends([broken, said]) as ends:
        for name in ("said", "broken"):
            with pytest.raises(ToolFailed):
                await ends.bot.call(name)
        (record,) = [it for it in caplog.records if it.name == "toolbridge"]
        assert record.getMessage() == 'the tool "broken" raised; the caller gets execution_error'
        assert record.exc_info is not None and isinstance(record.exc_info[1], KeyError)
        ends.app.on("tool_failed", lambda event: None)
        with pytest.raises(ToolFailed):
            await ends.bot.call("broken")
        assert len([it for it in caplog.records if it.name == "toolbridge"]) == 1


@in_loop
async def test_tool_that_blocks_the_event_loop_is_reported_at_its_own_side(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, passed = asyncio.get_running_loop(), 0.0
    own_time = loop.time
    monkeypatch.setattr(loop, "time", lambda: own_time() + passed)

    async def busy() -> None:
        """Blocks the loop for 6 s."""
        nonlocal passed
        passed += 6.0

    async with Ends([busy]) as ends:
        warned = asyncio.create_task(next_event(ends.app, "warning"))
        await ends.bot.call("busy")
        assert (await warned)["message"].startswith("the event loop was blocked for 5 s while a tool ran: after 5 s")
