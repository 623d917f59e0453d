"""Joining, reconnecting and leaving, with the real core in a room in memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from livekit.rtc._proto import room_pb2
from memory import Ends, FakeReader, FakeRoom, Memory, in_loop, next_event
from toolbridge import Ambiguous, Assistant, CallError, Client, Closed, Lost, NotAllowed, NotReady, ToolContext, _inbox, _session_runner, tool
from toolbridge._sender import Sender


@tool(name="echo", schema={"type": "object"}, description="Returns its arguments")
def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


def known(participant: Any, identity: str) -> Any:
    """What a participant of toolbridge knows of another one."""
    return next((who for who in participant.participants() if who["identity"] == identity), None)


async def in_steps(holds: Callable[[], bool]) -> None:
    """Returns as soon as this holds, at most some steps of the loop later: before any timer, and before any packet is sent again."""
    for _ in range(20):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not hold")


@in_loop
async def test_rooms_that_are_already_connected_work() -> None:
    memory = Memory()
    phone, agent = FakeRoom(memory, "phone", "client"), FakeRoom(memory, "agent", "assistant")
    await agent.connect()
    await phone.connect()
    await asyncio.sleep(0)
    async with Assistant(agent) as bot, Client(phone, [echo]):
        await bot.ready("phone")
        assert await bot.call("echo", {"a": 1}) == {"a": 1}


@in_loop
async def test_ready_of_a_silent_participant_has_no_tools_at_the_end_and_waits_for_a_slow_one() -> None:
    memory = Memory()
    phone, agent = FakeRoom(memory, "phone", "client"), FakeRoom(memory, "agent", "assistant")
    await agent.connect()
    await phone.connect()
    await asyncio.sleep(0)
    async with Assistant(agent, times={"silence": 0.01}) as bot:
        tools = None
        while tools is None:
            with contextlib.suppress(NotReady):
                tools = await bot.ready("phone", timeout=0.02)
        assert tools == []
        waiting = asyncio.create_task(bot.ready("phone"))
        await asyncio.sleep(0)
        async with Client(phone, [echo]):
            assert [it.name for it in await waiting] == ["echo"]  # the first that it registers


@in_loop
async def test_call_before_the_room_is_connected_is_refused() -> None:
    ends = Ends([echo])
    with pytest.raises(Closed) as closed:
        await ends.bot.call("echo")
    assert closed.value.may_have_run is False
    turn = ends.bot.turn()
    with pytest.raises(Closed):
        await turn.call("echo")
    assert ends.bot.tools() == [] and ends.bot.participants() == [] and not ends.bot.is_open
    await ends.connect()
    assert await ends.bot.call("echo", {"a": 1}) == {"a": 1}  # in the same step as the connection
    assert await turn.call("echo") == {}
    await ends.aclose()


@in_loop
async def test_permissions_that_are_unknown_are_not_trusted_until_they_are_known() -> None:
    ends = Ends([echo], assistant_kind=0, assistant_permission=False)
    joined = asyncio.create_task(next_event(ends.app, "joined", lambda event: event["participant"]["identity"] == "agent"))
    await ends.connect()
    assert (await joined)["participant"]["can_update_metadata"] is True
    assert ends.app.assistant is None
    bound = asyncio.create_task(next_event(ends.app, "bound"))
    await asyncio.sleep(0)
    ends.agent.permit(can_publish_data=True, can_update_metadata=False)
    assert (await bound)["assistant"] == "agent" == ends.app.assistant
    await ends.aclose()


@in_loop
async def test_role_that_a_participant_could_change_itself_is_not_trusted() -> None:
    ends = Ends([echo], assistant_kind=0)
    ends.agent.info.permission.can_update_metadata = True
    unaccepted = asyncio.create_task(next_event(ends.app, "unaccepted"))
    await ends.connect()
    assert "toolbridge.role" in (await unaccepted)["message"]
    assert ends.app.assistant is None
    await ends.aclose()


@in_loop
async def test_attributes_that_change_are_passed_on() -> None:
    ends = Ends([echo], assistant_role=None, assistant_kind=0)
    unaccepted = asyncio.create_task(next_event(ends.app, "unaccepted"))
    await ends.connect()
    await unaccepted
    bound = asyncio.create_task(next_event(ends.app, "bound"))
    await asyncio.sleep(0)
    ends.agent.set_role("assistant")
    assert (await bound)["assistant"] == "agent"
    await ends.aclose()


@in_loop
async def test_permission_that_changes_without_an_event_is_seen_at_the_next_packet() -> None:
    async with Ends([echo], assistant_kind=0) as ends:
        remote: Any = ends.phone.remote_participants["agent"]
        remote._info.permission.can_update_metadata = True
        with pytest.raises(CallError):
            await ends.bot.call("echo", timeout=0.3)
        (agent,) = [who for who in ends.app.participants() if who["identity"] == "agent"]
        assert agent["can_update_metadata"] is True


@pytest.mark.parametrize("what", ["attributes", "permissions"])
def test_participant_that_changes_and_sends_nothing_is_looked_at(what: str) -> None:
    @in_loop
    async def run() -> None:
        async with Ends([echo]) as ends:
            tv = FakeRoom(ends.memory, "tv", None)  # without toolbridge: it sends no packet
            joined = asyncio.create_task(next_event(ends.bot, "joined"))
            await asyncio.sleep(0)
            await tv.connect()
            await joined
            if what == "attributes":
                tv.set_role("client")
            else:
                tv.permit(can_publish_data=False)
            await in_steps(lambda: known(ends.bot, "tv") != joined.result()["participant"])
            now = known(ends.bot, "tv")
            assert now["attributes"] == ({"toolbridge.role": "client"} if what == "attributes" else {})
            assert now["can_publish_data"] is (what == "attributes")

    run()


@in_loop
async def test_participant_that_leaves_is_reported() -> None:
    async with Ends([echo]) as ends:
        tv = FakeRoom(ends.memory, "tv", None)
        await tv.connect()
        await in_steps(lambda: known(ends.bot, "tv") is not None)
        left = asyncio.create_task(next_event(ends.bot, "left"))
        await asyncio.sleep(0)
        tv.end(1)
        assert (await left)["peer"] == {"identity": "tv", "sid": tv.info.sid}
        assert known(ends.bot, "tv") is None


@in_loop
async def test_participant_that_the_sdk_has_under_another_sid_has_left_and_joined() -> None:
    async with Ends([echo]) as ends:
        tv = FakeRoom(ends.memory, "tv", None)
        await tv.connect()
        await in_steps(lambda: known(ends.bot, "tv") is not None)
        seen: list[Any] = []
        ends.bot.on("left", lambda event: seen.append(("left", event["peer"]["sid"])))
        ends.bot.on("joined", lambda event: seen.append(("joined", event["participant"]["sid"])))
        remote: Any = ends.agent.remote_participants["tv"]
        before, remote._info.sid = remote._info.sid, "PA_other"
        tv.set_role("client")  # the next event about it
        await in_steps(lambda: len(seen) == 2)
        assert seen == [("left", before), ("joined", "PA_other")]


@in_loop
async def test_other_sid_that_the_sdk_tells_of_after_a_reconnection_is_seen_without_a_packet() -> None:
    async with Ends([echo]) as ends:
        introduced = asyncio.Event()

        def passes(packet: Any) -> bool:
            if packet["from"] == "agent" and b"features" in packet["bytes"]:
                introduced.set()  # as at the beginning of each join
            return False

        ends.agent.lose()
        await asyncio.sleep(0)
        ends.memory.passes = passes
        ends.agent.restore(rejoins=True)
        await asyncio.wait_for(introduced.wait(), 5)


@in_loop
async def test_packet_of_a_sender_that_is_not_announced_is_dropped_and_counted() -> None:
    ends = Ends([echo])
    ends.memory.uninformed.add("phone")
    await ends.connect()
    while "unannounced_senders" not in ends.app.stats():
        await asyncio.sleep(0)
    ends.memory.introduce()
    assert await ends.bot.call("echo", {"a": 1}) == {"a": 1}
    assert ends.app.stats()["unannounced_senders"] >= 1
    await ends.aclose()


@in_loop
async def test_lossy_packets_that_are_lost_are_sent_again() -> None:
    async with Ends([echo]) as ends:
        lost = 0

        def passes(packet: Any) -> bool:
            nonlocal lost
            lost += not packet["reliable"]
            return bool(packet["reliable"])

        ends.memory.passes = passes
        for n in range(10):
            assert await ends.bot.call("echo", {"n": n}) == {"n": n}
        assert lost > 0


@pytest.mark.parametrize("rejoins", [False, True])
@pytest.mark.parametrize("who", ["phone", "agent"])
def test_lost_connection_that_returns_continues_open_calls(who: str, rejoins: bool) -> None:
    @in_loop
    async def run() -> None:
        begun, go = asyncio.Event(), asyncio.Event()

        @tool
        async def slow() -> str:
            """Takes long."""
            begun.set()
            await go.wait()
            return "done"

        async with Ends([slow]) as ends:
            call = asyncio.create_task(ends.bot.call("slow"))
            await begun.wait()
            lost = ends.phone if who == "phone" else ends.agent
            app: Any = ends.app if who == "phone" else ends.bot
            reconnecting = asyncio.create_task(next_event(app, "connection"))
            await asyncio.sleep(0)
            lost.lose()
            assert (await reconnecting)["state"] == "reconnecting"
            go.set()  # the result cannot be sent now
            await asyncio.sleep(0)
            lost.restore(rejoins=rejoins)
            assert await call == {"value": "done"}
            assert await ends.bot.call("slow") == {"value": "done"}

    run()


@in_loop
async def test_participants_that_the_sdk_forgets_while_it_reconnects_have_not_left() -> None:
    async with Ends([echo]) as ends:
        left: list[Any] = []
        ends.bot.on("left", left.append)
        ends.agent.lose()
        gone = room_pb2.ParticipantDisconnected(participant_identity="phone")
        ends.agent.post(room_pb2.RoomEvent(participant_disconnected=gone))
        await asyncio.sleep(0)
        event = room_pb2.RoomEvent()
        event.participant_connected.info.CopyFrom(ends.phone.owned())
        ends.agent.post(event)
        ends.agent.restore()
        assert await ends.bot.call("echo", {"a": 1}) == {"a": 1}
        assert left == []


@pytest.mark.parametrize("reason, kind", [(3, "server_shutdown"), (4, "removed"), (5, "room_deleted"), (2, "duplicate_identity"), (11, "server")])
def test_disconnected_room_closes_with_the_reason_of_the_server(reason: int, kind: str) -> None:
    @in_loop
    async def run() -> None:
        begun, stopped = asyncio.Event(), asyncio.Event()

        @tool
        async def hang(cx: ToolContext) -> None:
            """Hangs."""
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                if cx.stop_reason == "leaving":
                    stopped.set()

        async with Ends([hang]) as ends:
            call = asyncio.create_task(ends.bot.call("hang"))
            await begun.wait()
            closed = asyncio.create_task(next_event(ends.bot, "closed"))
            await asyncio.sleep(0)
            ends.agent.end(reason)
            assert (await closed)["reason"]["kind"] == kind
            with pytest.raises((Closed, Lost)) as error:
                await call
            assert error.value.may_have_run
            ends.phone.end(reason)
            await stopped.wait()

    run()


@in_loop
async def test_room_that_the_application_disconnects_ends_calls_as_closed_and_says_goodbye() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        """Hangs."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with Ends([hang]) as ends:
        call = asyncio.create_task(ends.bot.call("hang"))
        await begun.wait()
        closed = asyncio.create_task(next_event(ends.bot, "closed"))
        await asyncio.sleep(0)
        await ends.agent.disconnect()
        with pytest.raises(Closed) as error:
            await call
        assert error.value.may_have_run
        assert (await closed)["reason"]["kind"] == "closed"
        # Without a goodbye, the client would wait for 5 s.
        await asyncio.wait_for(stopped.wait(), 3)
        with pytest.raises(Closed):
            await ends.bot.call("hang")
        # The room may be connected again.
        await ends.agent.connect()
        await ends.bot.ready("phone")


@in_loop
async def test_room_whose_participant_was_closed_disconnects_as_before() -> None:
    async with Ends([echo]) as ends:
        assert "disconnect" in vars(ends.agent)
        await ends.bot.aclose()
        assert "disconnect" not in vars(ends.agent)
        await ends.agent.disconnect()


@in_loop
async def test_closed_client_says_goodbye_and_another_may_use_the_room() -> None:
    async with Ends([echo]) as ends:
        began = time.monotonic()
        await ends.app.aclose()
        await ends.app.aclose()
        while ends.bot.tools():
            await next_event(ends.bot, "tools_changed")
        assert time.monotonic() - began < 3  # without a goodbye, its absence is noticed after 5 s
        async with Client(ends.phone, [echo]):
            await ends.bot.ready("phone")
            assert await ends.bot.call("echo", {"a": 2}) == {"a": 2}


@in_loop
async def test_token_without_can_publish_data_is_not_allowed_and_an_event() -> None:
    async with Ends([echo]) as ends:
        not_allowed = asyncio.create_task(next_event(ends.bot, "not_allowed"))
        ends.agent.permit(can_publish_data=False)
        await asyncio.sleep(0)
        with pytest.raises(NotAllowed) as error:
            await ends.bot.call("echo")
        assert error.value.may_have_run is False
        assert "canPublishData" in (await not_allowed)["message"]


@in_loop
async def test_client_without_a_role_is_reported_with_the_grant() -> None:
    ends = Ends([echo], client_role=None, assistant={"admit_only_roles": True})
    not_admitted = asyncio.create_task(next_event(ends.bot, "not_admitted"))
    await ends.connect()
    event = await not_admitted
    assert event["client"] == "phone" and "toolbridge.role" in event["message"]
    with pytest.raises(NotReady) as error:
        await ends.bot.ready("phone", timeout=0.1)
    assert error.value.client == "phone"
    await ends.aclose()


@pytest.mark.parametrize(
    ("kind", "role", "is_warned"),
    [(0, None, True), (0, "client", True), (0, "assistant", False), (4, None, False), (4, "observer", True)],
)
@in_loop
async def test_assistant_whose_token_gives_it_no_role_is_warned_at_once_and_no_other_participant_is(
    kind: int, role: str | None, is_warned: bool
) -> None:
    # The client names the assistant, which it serves whatever its token says.
    ends = Ends([echo], client={"assistant": "agent"}, assistant_role=role, assistant_kind=kind)
    of_app: list[Any] = []
    of_bot: list[Any] = []
    ends.app.on("warning", of_app.append)
    ends.bot.on("warning", of_bot.append)
    async with ends:
        assert of_app == [] and len(of_bot) == int(is_warned)
        if is_warned:
            message = of_bot[0]["message"]
            assert message.startswith("the token of agent does not make it an assistant: ")
            assert "`assistant`" in message and "toolbridge.role=assistant" in message


@in_loop
async def test_participant_whose_token_hides_it_is_warned_at_once() -> None:
    ends = Ends([echo])
    messages: list[str] = []
    for end, room in ((ends.app, ends.phone), (ends.bot, ends.agent)):
        room.info.permission.hidden = True
        end.on("warning", lambda event: messages.append(event["message"]))
    async with ends:
        assert len(messages) == 2 and all("hides it" in message and "`hidden`" in message for message in messages)


@in_loop
async def test_rule_of_the_application_admits_and_one_that_raises_does_not() -> None:
    def admit(who: Any) -> bool:
        if who["identity"] != "phone":
            raise RuntimeError("who is that?")
        return True

    ends = Ends([echo], client_role=None, assistant={"admit": admit})
    warnings: list[Any] = []
    ends.bot.on("warning", warnings.append)
    async with ends:
        assert await ends.bot.call("echo", {"a": 1}) == {"a": 1}
        await FakeRoom(ends.memory, "tv", None).connect()
        while not warnings:
            await asyncio.sleep(0)
        assert "the rule for tv raised RuntimeError: who is that?" in warnings[0]["message"]


@in_loop
async def test_choice_among_several_clients_is_the_functions() -> None:
    questions: list[Any] = []
    answer: Any = "tv"

    def choose(candidates: list[str], name: str | None) -> Any:
        questions.append((sorted(candidates), name))
        return answer

    async with Ends([echo], assistant={"choose": choose}) as ends:
        tv = FakeRoom(ends.memory, "tv", "client")

        @tool(name="echo", description="Says who it is")
        async def own() -> str:
            return "tv"

        async with Client(tv, [own]):
            await tv.connect()
            await ends.bot.ready("tv")
            assert await ends.bot.call("echo") == {"value": "tv"}
            assert questions == [(["phone", "tv"], "echo")]
            assert await ends.bot.call("echo", to="phone") == {}

            async def later() -> str:
                return "tv"

            warnings: list[Any] = []
            ends.bot.on("warning", warnings.append)
            for answer in ("fridge", {"identity": "tv"}, later()):
                with pytest.raises(Ambiguous):
                    await ends.bot.call("echo")
                assert "no candidate; nobody is chosen" in warnings.pop()["message"] and not warnings


@in_loop
async def test_stream_that_is_longer_than_any_frame_is_not_read_and_a_broken_one_is_counted() -> None:
    async with Ends([echo]) as ends:
        handler: Any = ends.phone._byte_stream_handlers["toolbridge.frame"]
        header = {"topic": "toolbridge.frame", "attributes": {}}
        most = 16 * 1024 * 1024
        said = FakeReader({**header, "stream_id": "said", "total_size": most + 1, "bytes": bytes(100_000)})
        handler(said, "agent")
        unsaid = FakeReader({**header, "stream_id": "unsaid", "total_size": 0, "bytes": bytes(2 * most)})
        handler(unsaid, "agent")
        longer = FakeReader({**header, "stream_id": "longer", "total_size": 20_000, "bytes": bytes(100_000)})
        handler(longer, "agent")
        broken = FakeReader({**header, "stream_id": "broken", "total_size": 20_000, "bytes": bytes(20_000), "is_cut": True})
        handler(broken, "agent")
        while not all(reader.is_closed for reader in (said, unsaid, longer, broken)):
            await asyncio.sleep(0)
        assert (said.read, unsaid.read, longer.read) == (0, most // 15_000 + 1, 2)
        while "stream_broken" not in ends.app.stats():
            await asyncio.sleep(0)
        assert await ends.bot.call("echo", {"a": 1}) == {"a": 1}


@in_loop
async def test_stream_of_a_stranger_is_not_read() -> None:
    async with Ends([echo]) as ends:
        handler: Any = ends.phone._byte_stream_handlers["toolbridge.frame"]
        packet = {"topic": "toolbridge.frame", "attributes": {}, "total_size": 2, "bytes": b"x"}
        readers = [FakeReader({**packet, "stream_id": str(n)}, ends=False) for n in range(100)]
        for reader in readers:
            handler(reader, "stranger")
        assert all(reader.is_closed and reader.read == 0 for reader in readers)
        text = "a" * 60_000
        assert await ends.bot.call("echo", {"text": text}) == {"text": text}


@in_loop
async def test_stream_without_parts_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_inbox, "READERS", 1)
    async with Ends([echo]) as ends:
        handler: Any = ends.phone._byte_stream_handlers["toolbridge.frame"]
        packet = {"stream_id": "s", "topic": "toolbridge.frame", "attributes": {}, "total_size": 2, "bytes": b"x"}
        reader = FakeReader(packet, ends=False)
        handler(reader, "agent")
        text = "a" * 60_000
        assert await ends.bot.call("echo", {"text": text}) == {"text": text}
        await asyncio.wait_for(reader.closed.wait(), 1)
        assert reader.read == 1


@in_loop
async def test_handler_that_blocks_the_loop_is_counted_and_nothing_is_lost() -> None:
    @tool
    async def block() -> str:
        """Blocks the loop, which a tool should not do."""
        time.sleep(_session_runner.STALL + 0.5)
        return "done"

    async with Ends([block, echo]) as ends:
        calls = [asyncio.create_task(ends.bot.call(name)) for name in ("echo", "block", "echo")]
        assert await asyncio.gather(*calls) == [{}, {"value": "done"}, {}]
        assert ends.app.stats()["blocked_loop"] >= 1


@in_loop
async def test_use_from_another_thread_or_loop_raises_and_names_the_loop() -> None:
    async with Ends([echo]) as ends:
        raised: list[Any] = []

        def use() -> None:
            for run in (ends.bot.tools, lambda: asyncio.run(ends.bot.call("echo"))):
                try:
                    run()
                except RuntimeError as error:
                    raised.append(str(error))

        thread = threading.Thread(target=use)
        thread.start()
        await asyncio.to_thread(thread.join)
        outside, other = raised
        assert "belongs to the event loop of its room" in outside and "outside of an event loop" in outside
        assert repr(asyncio.get_running_loop()) in other and "run_coroutine_threadsafe" in other


def test_use_after_the_loop_is_closed_raises() -> None:
    kept: list[Any] = []

    async def run() -> None:
        ends = Ends([echo])
        await ends.connect()
        await ends.bot.ready("phone")
        kept.append(ends.bot)

    asyncio.run(run())
    with pytest.raises(RuntimeError, match="is closed"):
        kept[0].tools()


def test_loop_that_ends_during_a_call_cancels_it_and_says_nothing_on_the_console() -> None:
    program = """
import asyncio, sys, threading
sys.path.insert(0, sys.argv[1])
from memory import Ends
from toolbridge import tool
begun = []
@tool
async def hang():
    "Hangs."
    begun.append(1)
    await asyncio.Event().wait()
@tool
def hang_in_thread():
    "Hangs in a thread."
    begun.append(1)
    threading.Event().wait()
async def main():
    ends = Ends([hang, hang_in_thread])
    await ends.connect()
    await ends.bot.ready("phone")
    calls = [asyncio.create_task(ends.bot.call(name)) for name in ("hang", "hang_in_thread")]
    while len(begun) < 2:
        await asyncio.sleep(0)
    print("leaving")
asyncio.run(main())
"""
    folder = __file__.rpartition("/")[0]
    ran = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "leaving\n", "")


@in_loop
async def test_panic_of_the_core_closes_that_end_and_is_reported() -> None:
    begun = asyncio.Event()

    @tool
    async def hang() -> None:
        """Hangs."""
        begun.set()
        await asyncio.Event().wait()

    async with Ends([hang]) as ends:
        call = asyncio.create_task(ends.bot.call("hang"))
        await begun.wait()
        runner: Any = ends.bot._driver._runner  # type: ignore[attr-defined]

        def panics(*_: object) -> None:
            raise RuntimeError("panic: index out of bounds")

        events = [asyncio.create_task(next_event(ends.bot, name)) for name in ("error", "closed")]
        await asyncio.sleep(0)
        runner._session = SimpleNamespace(handle=panics, sent=panics, next_output=panics, next_deadline=panics)
        assert ends.bot.tools() == []
        error, closed = await asyncio.gather(*events)
        assert str(error["error"]) == "panic: index out of bounds" == closed["reason"]["text"]
        with pytest.raises(Closed, match="panic") as raised:
            await call
        assert raised.value.may_have_run
        with pytest.raises(Closed, match="panic"):
            await ends.bot.call("hang")
        # The process keeps running, and the room may be used again.
        async with Assistant(ends.agent) as again:
            await again.ready("phone")


@in_loop
async def test_listener_that_raises_affects_nobody_else_and_one_that_ended_is_not_called() -> None:
    ends = Ends([echo])
    seen: list[Any] = []

    @ends.bot.on("joined")
    def fails(event: Any) -> None:
        raise RuntimeError("no")

    ends.bot.on("joined", seen.append)
    stop = ends.bot.on("joined", lambda event: seen.append("stopped"))
    stop()
    stop()
    async with ends:
        assert [event["participant"]["identity"] for event in seen] == ["phone"]
    with pytest.raises(ValueError, match='no event "join"'):
        ends.bot.on("join", seen.append)  # type: ignore[call-overload]


@in_loop
async def test_closed_participants_are_collected() -> None:
    async def use() -> Any:
        async with Ends([echo]) as ends:
            await ends.bot.call("echo")
            return weakref.ref(ends.bot)

    gone = await use()
    await asyncio.sleep(0.2)  # timers of the loop that were cancelled may keep it until they are due
    gc.collect()
    assert gone() is None


@in_loop
async def test_packet_of_an_earlier_join_is_not_published() -> None:
    published: list[bytes] = []

    async def publish(data: bytes, *_: object) -> None:
        published.append(data)

    port: Any = SimpleNamespace(state="connected", may_publish=True, publish=publish)
    loop = asyncio.get_running_loop()
    sender = Sender(port, loop, is_wanted=lambda _: True, sent=lambda _: None, failed=lambda *_: None)
    packet = {"packet": 1, "lane": "reliable", "topic": "toolbridge", "to": []}
    sender.send(packet, b"old")
    sender.interrupt()
    sender.send(packet, b"new")
    await sender.flushed()
    assert published == [b"new"]
