"""Participants that join real rooms by themselves, without LiveKit's SDK."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import without_sdk  # noqa: F401
from ends import TOOLS, Program, fresh_room, require_parts, token
from toolbridge import (
    Assistant,
    CallError,
    CallTimeout,
    Cancelled,
    Client,
    Closed,
    E2eeKeys,
    JoinError,
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
URL = os.environ["LIVEKIT_URL"]

#: The longest time of a test, in seconds.
LIMIT = 120


def in_loop(test: Any) -> Any:
    """Runs an asynchronous test."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), LIMIT))

    return run


class Phone:
    """The tools of a client, and what they have seen."""

    def __init__(self) -> None:
        self.stopped: asyncio.Queue[Any] = asyncio.Queue()
        self.go = asyncio.Event()

    def tools(self) -> list[Any]:
        @tool(schema={"type": "object"})
        def echo(arguments: Any) -> Any:
            """Returns its arguments"""
            return arguments

        @tool(destructive=True)
        def remove(no: bool = False) -> str:
            """Removes it."""
            return "gone"

        return [echo, remove, self.hang, self.steps, self.fail, self.length]

    async def length(self, text: str) -> int:
        """Returns the length of the text."""
        return len(text)

    async def hang(self, cx: ToolContext) -> None:
        """Hangs."""
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.put_nowait(cx.stop_reason)

    async def steps(self, cx: ToolContext) -> str:
        """Works in steps."""
        cx.progress("half")
        await self.go.wait()
        return "done"

    def fail(self) -> None:
        """Fails."""
        raise ToolError("the watch is out of range", code="out_of_range")


@asynccontextmanager
async def phone_in(name: str) -> AsyncIterator[tuple[Phone, Client]]:
    phone = Phone()
    consent = lambda question: not question.arguments.get("no")  # noqa: E731
    async with await Client.join(URL, token(name, "phone", "client"), phone.tools(), consent=consent) as client:
        yield phone, client


@asynccontextmanager
async def assistant_in(name: str, **options: Any) -> AsyncIterator[Assistant]:
    async with await Assistant.join(URL, token(name, "agent", "assistant"), **options) as bot:
        await bot.ready("phone", timeout=20)
        yield bot


@in_loop
async def test_joined_assistant_calls_the_tools_of_the_command_line() -> None:
    name = fresh_room()
    async with (
        Program("client", "--room", name, "--identity", "phone", "--tools", str(TOOLS)),
        assistant_in(name) as bot,
    ):
        assert sorted(f"{it.owner}.{it.tool.name}" for it in bot.tools()) == [
            "phone.echo",
            "phone.fail",
            "phone.hang",
            "phone.length",
        ]
        assert await bot.call("echo", {"a": [1, "ö"]}, to="phone") == {"a": [1, "ö"]}
        with pytest.raises(ToolFailed) as failed:
            await bot.call("fail")
        assert (failed.value.code, failed.value.may_have_run) == ("execution_error", True)
        with pytest.raises(UnknownTool) as unknown:
            await bot.call("nothing", owner_wait=0.1)
        assert not unknown.value.may_have_run
        with pytest.raises((CallTimeout, ToolFailed)) as late:
            await bot.call("hang", timeout=0.3)
        assert (late.value.code, late.value.may_have_run) == ("timeout", True)
        for size in (14_000, 15_001, 1_000_000):  # a program may write 1 MiB
            assert len((await bot.call("echo", {"text": "a" * size}))["text"]) == size
        largest = MAX - 1_000
        assert await bot.call("length", {"text": "a" * largest}, timeout=60) == {"value": largest + len('{"text":""}')}
        with pytest.raises(TooLarge) as large:
            await bot.call("length", {"text": "a" * MAX})
        assert large.value.max == MAX and not large.value.may_have_run


@in_loop
async def test_joined_ends_have_keys_of_an_encrypted_room_which_may_change(tmp_path: Path) -> None:
    name, file = fresh_room(), tmp_path / "shared.key"
    file.write_text("the first\n")
    file.chmod(0o600)
    there = ("--room", name, "--identity", "phone", "--tools", str(TOOLS), "--e2ee-key-file", str(file), "--e2ee-salt", "sea")
    keys = E2eeKeys("the first", salt="sea", index=3)
    async with Program("client", *there), assistant_in(name, e2ee=keys) as bot:
        assert len((await bot.call("echo", {"text": "a" * 100_000}))["text"]) == 100_000
        # The other one reads its file once a second; a call that it cannot read is lost.
        file.write_text("the second\n")
        keys.set("the second", index=4)
        while True:
            try:
                assert await bot.call("echo", {"a": 1}, timeout=3) == {"a": 1}
                break
            except CallError as error:
                assert isinstance(error, (CallTimeout, UnknownTool, Lost)), error
    with pytest.raises(ValueError, match="no place of a key ring"):
        keys.add("third", index=16)
    with pytest.raises(ValueError, match="empty"):
        E2eeKeys("")


@in_loop
async def test_joined_ends_with_two_keys_name_each_other() -> None:
    name = fresh_room()
    async with (
        await Client.join(URL, token(name, "phone", "client"), Phone().tools(), e2ee="one") as phone,
        await Assistant.join(URL, token(name, "agent", "assistant"), e2ee=b"another") as bot,
    ):
        for end in (phone, bot):
            while not end.stats().get("undecryptable"):
                await asyncio.sleep(0.01)
        with pytest.raises(UnknownTool, match="phone may offer echo, but encrypts its data with a key that this assistant"):
            await bot.call("echo", {"text": ""}, owner_wait=1)


@in_loop
async def test_joined_client_that_is_hidden_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    name = fresh_room()
    async with await Client.join(URL, token(name, "phone", "client", hidden=True)):
        assert any("hidden" in record.getMessage() for record in caplog.records), caplog.records


@in_loop
async def test_joined_ends_have_progress_consent_cancellation_turns_and_events() -> None:
    name = fresh_room()
    async with phone_in(name) as (phone, client), assistant_in(name) as bot:
        messages: list[Any] = []

        def report(progress: Any) -> None:
            messages.append(progress.message)
            if progress.message == "half":
                phone.go.set()

        assert await bot.call("steps", on_progress=report) == {"value": "done"}
        assert "half" in messages
        assert client.assistant == "agent"  # `ready` may resolve before the client knows that it is bound
        assert await bot.call("remove") == {"value": "gone"}
        with pytest.raises(ToolFailed) as failed:
            await bot.call("remove", {"no": True})
        assert (failed.value.code, failed.value.may_have_run) == ("permission_denied", False)
        with pytest.raises(ToolFailed) as failed:
            await bot.call("fail")
        assert (failed.value.code, str(failed.value)) == ("out_of_range", "the watch is out of range")

        settled: asyncio.Queue[Any] = asyncio.Queue()
        bot.on("settled", settled.put_nowait)
        started = asyncio.Event()
        call = asyncio.create_task(bot.call("hang", on_progress=lambda it: started.set()))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await phone.stopped.get() == "caller"
        assert (await settled.get())["outcome"] == "cancelled"

        turn, started = bot.turn(), asyncio.Event()
        call = asyncio.create_task(turn.call("hang", on_progress=lambda it: started.set()))
        await started.wait()
        turn.barge_in()
        assert await phone.stopped.get() == "barge_in"
        with pytest.raises(Cancelled):
            await call
        text = "ü" * 1024 * 1024
        assert (await bot.call("echo", {"text": text}))["text"] == text


@in_loop
async def test_stream_whose_call_is_cancelled_is_not_sent_to_its_end() -> None:
    name = fresh_room()
    async with phone_in(name) as (_, client), assistant_in(name) as bot:
        text = "a" * (MAX - 1_000)
        requested: asyncio.Queue[Any] = asyncio.Queue()
        bot.on("requested", requested.put_nowait)
        call = asyncio.create_task(bot.call("length", {"text": text}))
        await requested.get()
        queue: Any = bot._driver._queue  # type: ignore[attr-defined]
        assert queue._core.backlog() > MAX - 1_000
        call.cancel()
        await asyncio.wait([call])
        assert await bot.call("length", {"text": "abc"}) == {"value": 3}
        assert queue._core.backlog() < 1_000
        assert client.stats()["bytes_in"] < MAX


@in_loop
async def test_participant_that_leaves_ends_its_calls_at_both_ends_at_once() -> None:
    name = fresh_room()
    async with phone_in(name) as (phone, client):
        left: asyncio.Queue[Any] = asyncio.Queue()
        client.on("left", left.put_nowait)
        async with assistant_in(name) as bot:
            started = asyncio.Event()
            call = asyncio.create_task(bot.call("hang", on_progress=lambda it: started.set()))
            await started.wait()
            await bot.aclose()
            with pytest.raises(Closed) as closed:
                await call
            assert closed.value.may_have_run
            # The goodbye says so. Without it the tool would be stopped 5 s later.
            assert await asyncio.wait_for(phone.stopped.get(), 3) == "caller_gone"
            assert (await left.get())["peer"]["identity"] == "agent"
            with pytest.raises(Closed):
                await bot.call("echo")
            assert room_of(bot)._core.wait(LIMIT), "the thread has not ended"


@in_loop
async def test_room_that_is_not_joined_raises_with_the_reason() -> None:
    with pytest.raises(JoinError, match="cannot be reached"):
        await Assistant.join("ws://127.0.0.1:1", token("none", "agent"))
    with pytest.raises(JoinError, match="not a JWT"):
        await Assistant.join(URL, "secret")
    with pytest.raises(JoinError, match="rejected the token"):
        await Client.join(URL, f"{token('none', 'phone')[:-4]}AAAA")
    with pytest.raises(ValueError, match="bridge"):
        await Client.join(URL, token("none", "phone"), [tool(name="bridge.x", description="")(lambda: None)])
    with pytest.raises(TypeError, match="unexpected"):
        await Assistant.join(URL, token("none", "phone"), colour="red")


@in_loop
async def test_join_that_is_given_up_ends_in_silence() -> None:
    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        await reader.read()
        writer.close()

    reached = asyncio.Event()
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for wait in (asyncio.sleep(0), reached.wait()):
            join = asyncio.create_task(Assistant.join(f"ws://127.0.0.1:{port}", token("none", "agent")))
            await wait
            join.cancel()
            with pytest.raises(asyncio.CancelledError):
                await join
    assert not errors


@in_loop
async def test_token_that_may_not_send_data_fails_each_call_and_says_which_grant() -> None:
    name = fresh_room()
    async with phone_in(name):
        bot = await Assistant.join(URL, token(name, "agent", "assistant", canPublishData=False), clients=["phone"])
        events: asyncio.Queue[Any] = asyncio.Queue()
        bot.on("not_allowed", events.put_nowait)
        with pytest.raises(NotAllowed) as error:
            await bot.call("echo", to="phone")
        assert not error.value.may_have_run
        assert "canPublishData" in (await events.get())["message"]
        await bot.aclose()


@in_loop
async def test_participant_that_is_replaced_is_closed_with_the_reason() -> None:
    name = fresh_room()
    async with phone_in(name), assistant_in(name) as bot:
        closed: asyncio.Queue[Any] = asyncio.Queue()
        bot.on("closed", closed.put_nowait)
        call = asyncio.create_task(bot.call("hang"))
        async with assistant_in(name):
            assert (await closed.get())["reason"]["kind"] == "duplicate_identity"
            with pytest.raises((Closed, Lost)):
                await call
            assert not bot.is_open
            assert room_of(bot)._core.wait(LIMIT)


@in_loop
async def test_call_survives_a_restart_of_the_server_and_both_ends_rejoin() -> None:
    name = fresh_room()
    async with phone_in(name) as (phone, client), assistant_in(name) as bot:
        before = [room_of(it).local()["sid"] for it in (bot, client)]
        states: asyncio.Queue[Any] = asyncio.Queue()
        bot.on("connection", lambda event: states.put_nowait(event["state"]))
        half = asyncio.Event()
        call = asyncio.create_task(bot.call("steps", timeout=60, on_progress=lambda it: half.set()))
        await half.wait()
        # `scripts/parts livekit-server with` starts it again, with AGAIN=1.
        os.kill(int(Path(os.environ["LIVEKIT_SERVER_PID"]).read_text()), signal.SIGKILL)
        assert [await states.get(), await states.get()] == ["reconnecting", "connected"]
        phone.go.set()
        assert await call == {"value": "done"}
        assert await bot.call("echo", {"a": 1}, owner_wait=20) == {"a": 1}
        after = [room_of(it).local()["sid"] for it in (bot, client)]
        assert all(old != new for old, new in zip(before, after, strict=True))
        assert {it["identity"] for it in bot.participants()} == {"phone"}


@in_loop
async def test_panic_in_the_thread_closes_that_participant_and_no_other() -> None:
    name = fresh_room()
    async with phone_in(name) as (_, client), assistant_in(name) as bot:
        errors: asyncio.Queue[Any] = asyncio.Queue()
        bot.on("error", errors.put_nowait)
        call = asyncio.create_task(bot.call("hang"))
        room_of(bot)._core.panic()
        assert str((await errors.get())["error"]) == "panic: a panic was asked for"
        with pytest.raises(Closed):
            await call
        with pytest.raises(Closed, match="panic"):
            await bot.call("echo")
        assert client.is_open
    async with phone_in(name), assistant_in(name):
        pass  # the process goes on


@in_loop
async def test_other_thread_and_other_loop_are_refused() -> None:
    name = fresh_room()
    async with phone_in(name), assistant_in(name) as bot:
        with pytest.raises(RuntimeError, match="belongs to the event loop"):
            await asyncio.to_thread(bot.tools)


@pytest.mark.parametrize("how", ["exit", "raise", "stopped_loop", "closed_loop"])
def test_process_that_ends_says_goodbye_and_does_not_hang(how: str) -> None:
    async def run() -> None:
        name = fresh_room()
        async with phone_in(name) as (phone, client):
            left: asyncio.Queue[Any] = asyncio.Queue()
            client.on("left", left.put_nowait)
            async with worker(how, name) as (child, lines):
                assert await lines.readline() == b"started\n"
                if how == "closed_loop":
                    # Nothing can run that would say goodbye, but the room is left while the process goes on.
                    assert await lines.readline() == b"collected\n"
                    assert (await left.get())["peer"]["identity"] == "agent"
                    assert child.returncode is None
                    child.stdin.write(b"\n")
                else:
                    # The goodbye says so, or before it the cancellation by `asyncio.run`. Without them the tool would be stopped 5 s
                    # later.
                    reasons = ["caller_gone"] if how == "stopped_loop" else ["caller_gone", "caller"]
                    assert await asyncio.wait_for(phone.stopped.get(), 3) in reasons
                assert await asyncio.wait_for(child.wait(), 10) == (1 if how == "raise" else 0)

    asyncio.run(asyncio.wait_for(run(), LIMIT))


@in_loop
async def test_process_that_is_forked_raises_in_the_child_and_goes_on_in_the_parent() -> None:
    name = fresh_room()
    async with phone_in(name), worker("fork", name) as (child, lines):
        text = (await lines.read()).decode().splitlines()
        assert text[0] == "started"
        assert text[1].startswith("the child: this process was forked after the room was joined")
        assert text[2:] == ["the child ends", "the child has ended with 0", "the parent: {'a': 1}", "closed"]
        assert await child.wait() == 0


@in_loop
async def test_example_of_the_page_runs() -> None:
    (code,) = re.findall(r"```py\n(.*?)```", (Path(__file__).parents[2] / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {"Assistant": Assistant, "print": lambda value: printed.append(value)}
    printed: list[Any] = []
    exec(code, names)
    name = fresh_room()

    async def get_battery() -> int:
        """Returns the charge."""
        return 80

    async with await Client.join(URL, token(name, "phone", "client"), [get_battery]):
        await names["ask_by_itself"](URL, token(name, "agent", "assistant"))
    assert printed == [{"value": 80}]


def test_package_without_the_sdk_says_what_it_needs_for_a_room_of_the_sdk() -> None:
    if importlib.util.find_spec("livekit") is not None:
        pytest.skip("LiveKit's SDK is installed here")

    async def run() -> None:
        with pytest.raises(ImportError, match="needs the package livekit 1.1.21 or later"):
            room: Any = object()
            Assistant(room)

    asyncio.run(run())


@asynccontextmanager
async def worker(how: str, name: str) -> AsyncIterator[tuple[Any, asyncio.StreamReader]]:
    pipe = asyncio.subprocess.PIPE
    folder = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(folder.parent / "rooms")])}
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(folder / "worker.py"), how, name, stdin=pipe, stdout=pipe, env=environment
    )
    assert child.stdout is not None
    try:
        yield child, child.stdout
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


def room_of(participant: Any) -> Any:
    return participant._port
