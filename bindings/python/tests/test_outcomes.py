"""Rows of the table in src/guide/reliability.md that the other files do not check, in a room in memory."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from memory import Ends, FakeRoom, in_loop, next_event
from toolbridge import (
    Ambiguous,
    Assistant,
    Busy,
    CallError,
    Client,
    ConsentRequest,
    InvalidLimit,
    Lost,
    NotBound,
    NotDelivered,
    ToolFailed,
    TooManyEqual,
    TooManyOpen,
    tool,
)
from toolbridge._executor import THREADS


@tool(name="echo", schema={"type": "object"}, description="Returns its arguments")
async def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


class Counter:
    """Sets `reached` at this number."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.reached = asyncio.Event()

    def add(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.reached.set()


class Hang:
    """A tool that hangs until `go` is set."""

    def __init__(self, **options: Any) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.runs = 0
        self.tool = tool(name="hang", description="Hangs", **options)(self._run)

    async def _run(self) -> str:
        self.runs += 1
        self.begun.set()
        await self.go.wait()
        return "done"


@in_loop
async def test_two_owners_are_an_error_that_names_them_unless_one_is_named_or_pinned() -> None:
    async with Ends([echo], assistant={"pins": {"pinned": "tv"}}) as ends:
        tv = FakeRoom(ends.memory, "tv", "client")

        @tool(name="pinned", description="Says who it is")
        async def pinned() -> str:
            return "tv"

        async with Client(tv, [echo, pinned]):
            await tv.connect()
            await ends.bot.ready("tv")
            with pytest.raises(Ambiguous) as failed:
                await ends.bot.call("echo")
            assert sorted(failed.value.owners) == ["phone", "tv"] and not failed.value.may_have_run
            assert await ends.bot.call("echo", {"a": 1}, to="tv") == {"a": 1}
            ends.app.offer([echo, tool(name="pinned", description="Says who it is")(lambda: "phone")])
            await next_event(ends.bot, "tools_changed")
            assert await ends.bot.call("pinned") == {"value": "tv"}


@in_loop
async def test_error_names_the_clients_that_are_bound_to_another_assistant() -> None:
    async with Ends([echo], client={"assistant": "agent"}) as ends:
        second = FakeRoom(ends.memory, "second", "assistant", kind=4)
        async with Assistant(second) as other:
            await second.connect()
            with pytest.raises(NotBound) as failed:
                await other.call("echo", owner_wait=0.2)
            assert failed.value.owners == ["phone"] and not failed.value.may_have_run


@in_loop
async def test_question_that_nobody_answers_is_a_refusal_before_the_limit() -> None:
    async def consent(_: Any) -> bool:
        await asyncio.Event().wait()
        return True

    @tool(destructive=True)
    async def remove() -> None:
        """Removes it."""
        raise AssertionError("it runs")

    async with Ends([remove], client={"consent": consent}) as ends:
        began = asyncio.get_running_loop().time()
        with pytest.raises(ToolFailed) as failed:
            await ends.bot.call("remove", timeout=1.0)
        assert (failed.value.code, failed.value.may_have_run) == ("permission_denied", False)
        assert asyncio.get_running_loop().time() - began < 0.9


@in_loop
async def test_request_that_a_lost_connection_has_stopped_is_sent_when_it_is_back() -> None:
    async with Ends([echo]) as ends:
        ends.agent.lose()
        call = asyncio.create_task(ends.bot.call("echo", {"a": 1}))
        await next_event(ends.bot, "connection")
        assert not call.done()
        ends.agent.restore()
        assert await call == {"a": 1}


@in_loop
async def test_request_that_was_never_sent_is_not_delivered() -> None:
    async with Ends([echo]) as ends:
        ends.agent.lose()
        await asyncio.sleep(0)
        with pytest.raises(NotDelivered) as failed:
            await ends.bot.call("echo", timeout=0.3)
        assert not failed.value.may_have_run


@in_loop
async def test_goodbye_of_a_client_loses_its_calls_at_once() -> None:
    hang = Hang()
    async with Ends([hang.tool]) as ends:
        call = asyncio.create_task(ends.bot.call("hang"))
        await hang.begun.wait()
        began = asyncio.get_running_loop().time()
        await ends.app.aclose()
        with pytest.raises(Lost) as failed:
            await call
        assert failed.value.may_have_run and asyncio.get_running_loop().time() - began < 3


@in_loop
async def test_goodbye_of_a_client_ends_calls_that_have_not_started_as_busy() -> None:
    hang, asked, ran = Hang(), asyncio.Event(), threading.Event()
    release, blocked, delivered = threading.Event(), Counter(THREADS), Counter(THREADS + 4)
    loop = asyncio.get_running_loop()

    @tool(destructive=True)
    async def remove() -> None:
        """Deletes a file."""
        ran.set()

    @tool
    def block() -> None:
        """Takes a thread."""
        loop.call_soon_threadsafe(blocked.add)
        release.wait()

    @tool
    def note() -> None:
        """Needs a thread, and all are taken."""
        ran.set()

    async def consent(_: ConsentRequest) -> bool:
        asked.set()
        await loop.create_future()
        return True

    client = {"caps": {"running_jobs": THREADS + 2}, "consent": consent}
    try:
        async with Ends([hang.tool, remove, block, note], client=client) as ends:
            ends.bot.on("delivered", lambda _: delivered.add())
            started = [asyncio.create_task(ends.bot.call(name)) for name in ["hang"] + ["block"] * THREADS]
            await asyncio.gather(hang.begun.wait(), blocked.reached.wait())
            # They wait for a thread, for a place, and for a person.
            waiting = [asyncio.create_task(ends.bot.call(name)) for name in ("note", "note", "remove")]
            await asyncio.gather(asked.wait(), delivered.reached.wait())
            await ends.app.aclose()
            for call in waiting:
                with pytest.raises(Busy) as failed:
                    await call
                assert failed.value.owner == "phone" and not failed.value.may_have_run
            for call in started:
                with pytest.raises(Lost) as lost:
                    await call
                assert lost.value.may_have_run
    finally:
        release.set()
    assert not ran.is_set()


@in_loop
async def test_killed_client_is_lost_after_the_grace_period() -> None:
    hang = Hang()
    async with Ends([hang.tool], assistant={"times": {"grace": 0.5}}) as ends:
        call = asyncio.create_task(ends.bot.call("hang"))
        await hang.begun.wait()
        ends.memory.passes = lambda packet: packet["from"] != "phone"
        with pytest.raises(Lost) as failed:
            await call
        assert failed.value.may_have_run and failed.value.owner == "phone"


@pytest.mark.parametrize("idempotent", [False, True])
def test_call_to_a_client_that_is_started_again_is_lost_unless_its_tool_may_run_twice(idempotent: bool) -> None:
    @in_loop
    async def run() -> None:
        first, second = Hang(idempotent=idempotent), Hang(idempotent=idempotent)
        second.go.set()
        async with Ends([first.tool]) as ends:
            call = asyncio.create_task(ends.bot.call("hang"))
            await first.begun.wait()
            # The process is killed, and another one joins under the identity. The server replaces the first.
            again = FakeRoom(ends.memory, "phone", "client")
            ends.phone._leave()
            async with Client(again, [second.tool]):
                await again.connect()
                if idempotent:
                    assert await call == {"value": "done"}
                else:
                    with pytest.raises(Lost) as failed:
                        await call
                    assert failed.value.may_have_run
                assert (first.runs, second.runs) == (1, int(idempotent))

    run()


@in_loop
async def test_sixty_fifth_open_call_to_one_client_is_refused() -> None:
    async with Ends([echo]) as ends:
        ends.memory.passes = lambda packet: False
        calls = [asyncio.create_task(ends.bot.call("echo", {"n": n})) for n in range(64)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyOpen) as failed:
            await ends.bot.call("echo")
        assert not failed.value.may_have_run
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


@in_loop
async def test_timeout_that_is_not_allowed_is_refused_in_seconds() -> None:
    async with Ends([echo]) as ends:
        for timeout in (601, 0.0001):
            with pytest.raises(InvalidLimit) as failed:
                await ends.bot.call("echo", timeout=timeout)
            text = f"`timeout` is {timeout}; it must be a number of seconds from 0.001 to 600"
            assert str(failed.value) == text and not failed.value.may_have_run


@in_loop
async def test_calls_above_the_rate_of_the_client_are_busy_and_do_not_run() -> None:
    ran: list[int] = []

    @tool
    async def note(n: int) -> None:
        """Notes a number."""
        ran.append(n)

    async with Ends([note]) as ends:
        calls = [asyncio.create_task(ends.bot.call("note", {"n": n})) for n in range(60)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        busy = [n for n, result in enumerate(results) if isinstance(result, Busy)]
        assert len(busy) == 10 and not set(busy) & set(ran) and len(ran) == 50


@in_loop
async def test_turn_may_make_the_same_call_five_times() -> None:
    async with Ends([echo]) as ends:
        with ends.bot.turn() as turn:
            for _ in range(5):
                assert await turn.call("echo", {"a": 1}) == {"a": 1}
            with pytest.raises(TooManyEqual) as failed:
                await turn.call("echo", {"a": 1})
            assert not failed.value.may_have_run
            assert await turn.call("echo", {"a": 2}) == {"a": 2}


def lamps(ran: list[str]) -> Ends:
    """Both ends have the same tool, which notes where it runs."""

    def lamp_of(who: str) -> Any:
        @tool(name="lamp", description="Switches the lamp", prefer_client=True)
        async def lamp() -> str:
            ran.append(who)
            return who

        return lamp

    return Ends([lamp_of("phone")], assistant={"tools": [lamp_of("agent")]})


@in_loop
async def test_own_tool_that_a_client_has_too_runs_once_at_one_of_them() -> None:
    ran: list[str] = []
    async with lamps(ran) as ends:
        assert await ends.bot.call("lamp") == {"value": "phone"}
        await ends.app.aclose()
        while [it.owner for it in ends.bot.tools()] != ["agent"]:
            await next_event(ends.bot, "tools_changed")
        assert await ends.bot.call("lamp") == {"value": "agent"}
        assert ran == ["phone", "agent"]


@in_loop
async def test_own_tool_runs_at_the_assistant_if_the_client_does_not_claim_it() -> None:
    ran: list[str] = []
    async with lamps(ran) as ends:
        # What the client sends is lost for longer than the claim window of 2 s.
        ends.memory.passes = lambda packet: packet["from"] != "phone"
        assert await ends.bot.call("lamp") == {"value": "agent"}
        ends.memory.passes = lambda packet: True
        assert ran == ["agent"]


@in_loop
async def test_call_has_one_outcome_whatever_is_lost() -> None:
    async with Ends([echo]) as ends:
        ends.memory.passes = lambda packet: packet["from"] != "phone"
        with pytest.raises(CallError) as failed:
            await ends.bot.call("echo", timeout=0.4)
        assert failed.value.may_have_run
