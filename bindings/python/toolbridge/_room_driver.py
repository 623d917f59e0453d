"""Drives one participant over a room of LiveKit's SDK: its sessions of the core, one after the other, and what they need."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ._events import NAMES, Emitter, EventName
from ._executor import THREADS, Executor, Threads, describe
from ._inbox import Inbox
from ._json import JsonObject, present
from ._names import in_python
from ._open_calls import OpenCalls
from ._questions import Questions
from ._record import Record
from ._room import ReceivedStream, port_of
from ._room_claim import release
from ._room_view import RoomView, Rules
from ._session_runner import SessionRunner
from ._tool import NamedTool
from ._vocabulary import EVENTS

if TYPE_CHECKING:
    from ._driver import OpenCall
    from ._types import AskPerson, Chooser

#: The time limit of sending the last packets, in seconds.
FLUSH = 1.0


class DriverOptions(Record):
    role: str
    #: The core's ``config``, except what the room says.
    config: Mapping[str, object]
    threads: int = THREADS
    consent: AskPerson | None = None
    rules: Rules = Rules()
    choose: Chooser | None = None


class RoomDriver:
    def __init__(
        self,
        room: Any,
        loop: asyncio.AbstractEventLoop,
        emitter: Emitter,
        tools: Mapping[str, NamedTool],
        options: DriverOptions,
    ) -> None:
        port = self._port = port_of(room)
        self._emitter = emitter
        self._options = options
        runner = self._runner = SessionRunner(
            loop,
            output=self._carry_out,
            backlog=lambda: self._queue.take_backlog(),
            drained=self._notify_watchers,
            warn=self._warn,
            count=self._count,
            failed=self._fail,
        )
        self._queue = port.sender(loop, is_wanted=self._is_wanted, sent=runner.sent, failed=self._send_failed)
        self._view = RoomView(
            port,
            loop,
            runner,
            options.rules,
            interrupt=self._queue.interrupt,
            restored=lambda: self._inbox.pass_early(),
            warn=self._warn,
        )
        self._inbox = Inbox(port, loop, runner, self._view, start=self._start, count=self._count)
        self._calls = OpenCalls(runner)
        self._executor = Executor(loop, runner, Threads(loop, options.threads), emitter.tool_raised, self._warn)
        self._questions = Questions(
            loop,
            options.consent,
            Threads(loop, options.threads),
            check=self._executor.check,
            refused=self._executor.refuse,
            answered=lambda key, allowed: runner.feed({"type": "consent", "key": key, "allowed": allowed}),
            left=runner.left,
            warn=self._warn,
        )
        self._offered = "[]"
        self._watchers: list[Callable[[], None]] = []
        # Whether there was a call whose caller wants to know its progress.
        self._wants_progress = False
        self._is_stopped = False
        self._is_leaving = False
        self._failure: Exception | None = None
        self._closed: Mapping[str, str] = {"kind": "closed"}
        self.counters: dict[str, int] = {}
        emitter.wanted_changed = self._listen
        self.offer(tools)  # before the session begins: an empty list would be registered first
        self._stop_listening = port.listen(self, loop)
        try:
            self._start()
        except BaseException:
            self._stop_listening()
            raise

    @property
    def is_open(self) -> bool:
        return self._runner.is_open

    def offer(self, tools: Mapping[str, NamedTool]) -> None:
        self._executor.tools = tools
        text = json.dumps([tool.core for tool in tools.values()])
        if text == self._offered:
            return  # only the functions are others
        self._offered = text
        if self.is_open:
            self._offer()

    def require_session(self) -> None:
        if self._failure is not None:
            raise RuntimeError(str(self._failure))
        if self._is_stopped:
            raise RuntimeError("this participant was closed")
        self._start()  # the event of the connection may be on its way
        if not self.is_open:
            raise RuntimeError("the room is not connected")

    def call(self, fields: Mapping[str, Any], raw: Mapping[str, str], call: OpenCall) -> int:
        if call.wants_progress and not self._wants_progress:
            self._wants_progress = True
            self._listen()
        return self._calls.begin(fields, raw, call)

    def input(self, fields: Mapping[str, Any], raw: Mapping[str, str] = {}) -> JsonObject | None:
        reply = self._runner.handle(fields, raw)
        self._runner.drain()
        return reply

    def query(self, fields: Mapping[str, Any]) -> JsonObject | None:
        return self._runner.query(fields)

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    async def stop(self) -> None:
        if self._is_stopped:
            return
        self._is_stopped = True
        self._say_goodbye()
        self._detach()
        try:
            await self._flush()
        finally:
            release(self._port.room)  # others see one sender: packets of the next participant must not overtake these

    # What the room reports.

    def connected(self) -> None:
        self._runner.safely(self._start)

    def reconnecting(self) -> None:
        self._view.reconnecting()

    def reconnected(self) -> None:
        self._runner.safely(self._view.reconnected if self.is_open else self._start)

    def disconnected(self, reason: Mapping[str, str]) -> None:
        self._queue.interrupt()
        self._inbox.drop_early()
        self._close(reason, {"type": "closed", "reason": reason})

    def changed(self, identity: str) -> None:
        self._view.touch(identity)

    def packet(self, sender: str | None, is_reliable: bool, topic: str, data: bytes) -> None:
        self._inbox.packet(sender, is_reliable, topic, data)

    def stream(self, stream: ReceivedStream) -> None:
        self._inbox.stream(stream)

    def room_input(self, text: str, data: bytes | None = None) -> None:
        """Passes an input that the room has written itself, without its time."""
        self._runner.safely(lambda: self._room_input(text, data))

    def failed(self, error: Exception) -> None:
        """The room has failed."""
        self._fail(error)

    def exiting(self) -> None:
        """The interpreter exits. The loop does not run any more."""
        if not self._is_stopped:
            self._is_stopped = True
            self._say_goodbye()
            self._detach()

    def _room_input(self, text: str, data: bytes | None) -> None:
        self._view.flush()
        self._runner.feed_text(text, data)

    async def leaving(self) -> None:
        """The application is about to disconnect the room. Calls end, and a goodbye is sent while that is possible."""
        if self.is_open:
            self._is_leaving = True
            self._say_goodbye()
            await self._flush()

    def left(self) -> None:
        self._is_leaving = False

    # Sessions.

    def _start(self) -> None:
        """Begins a session, if the room is connected."""
        port, options = self._port, self._options
        if self.is_open or self._is_stopped or self._is_leaving or port.state != "connected":
            return
        local = port.local()
        config = {
            "lossy": True,
            "streams": True,
            "room": port.name,
            "overhead": port.overhead,
            "consentAvailable": options.consent is not None,
            **options.config,
        }
        self._queue.begin_reports()
        self._view.begin(local)
        try:
            self._runner.begin({"role": options.role, "local": local, "config": config})
        except ValueError as error:
            raise ValueError(f"the session cannot be created: {error}") from None
        self._listen()
        self._offer()
        self._view.report_all()
        self._emitter.emit("connected", {"identity": local["identity"], "room": port.name})
        if port.is_hidden:
            self._warn(
                f"the token of {local['identity']} hides it: others do not see the participant, so it can neither offer tools "
                "nor call any; have the token server leave out `hidden`"
            )
        elif options.role == "assistant" and not _may_be_assistant(local):
            self._warn(
                f"the token of {local['identity']} does not make it an assistant: clients serve it only if they name it "
                "(option `assistant`). Otherwise use a token with the attribute toolbridge.role=assistant, or of a LiveKit agent without a role"
            )

    def _listen(self) -> None:
        """Names the core's events that are needed: each of the others would be written and read for nothing, at each call."""
        events = [*self._emitter.wanted(), "closed"]
        if self._wants_progress and "progress" not in events:
            events.append("progress")
        self._runner.feed_only({"type": "listen", "events": events})

    def _offer(self) -> None:
        if self._offered == "[]" and self._options.role == "assistant":
            return
        reply = self._runner.feed({"type": "offer", "partial": True}, {"tools": self._offered})
        if reply is not None and reply["leftOut"]:
            self._emitter.emit("left_out", {"tools": reply["leftOut"]})

    def _carry_out(self, output: JsonObject) -> None:
        kind = output["type"]
        if kind == "transmit":
            self._transmit(output)
        elif kind == "execute":
            self._executor.execute(output)
        elif kind == "ask":
            self._questions.ask(output)
        elif kind == "select":
            self._select(output)
        elif kind == "abort":
            self._questions.withdraw(output["key"])
            self._executor.abort(output["key"], output["reason"])
        elif kind == "progress":
            self._progress(output)
        elif kind == "result":
            self._calls.settled(output)
        elif kind == "event":
            self._event(output)

    def _transmit(self, packet: JsonObject) -> None:
        data = self._runner.take_bytes()
        if data is not None and not self._queue.send(packet, data):
            self._runner.feed_only({"type": "send_failed", "packet": packet["packet"], "why": "queue_full"})

    def _send_failed(self, packet: int, failure: Mapping[str, Any]) -> None:
        self._runner.feed({"type": "send_failed", "packet": packet, **failure})

    def _is_wanted(self, packet: int) -> bool:
        reply = self.query({"type": "is_wanted", "packet": packet})
        return reply is not None and bool(reply["wanted"])

    def _select(self, select: JsonObject) -> None:
        identity: str | None = None
        choose, candidates = self._options.choose, [it["identity"] for it in select["candidates"]]
        try:
            chosen: object = None if choose is None else choose(candidates, select.get("tool"))
            if chosen in candidates:
                identity = cast("str", chosen)
            elif chosen is not None:
                if inspect.iscoroutine(chosen):
                    chosen.close()
                found = "an awaitable, and must not be async" if inspect.isawaitable(chosen) else repr(chosen)
                self._warn(f"the function that chooses returned {found}, which is the identity of no candidate; nobody is chosen")
        except Exception as error:
            self._warn(f"the function that chooses raised {describe(error)}; nobody is chosen")
        self._runner.feed_only({"type": "select", "key": select["key"], **present(identity=identity)})

    def _event(self, output: JsonObject) -> None:
        name = output["event"]
        event = {field: value for field, value in output.items() if field not in ("type", "event")}
        if name == "closed":
            self._closed = event["reason"]  # reported when everything is closed
            return
        if name in NAMES:
            self._emitter.emit(cast(EventName, name), in_python(event, EVENTS.get(name, {})))

    def _progress(self, output: JsonObject) -> None:
        self._calls.progress(output)
        self._emitter.emit("progress", {key: value for key, value in output.items() if key not in ("type", "id")})

    # The end.

    def _say_goodbye(self) -> None:
        self._queue.drop_streams()
        self._close({"kind": "closed"}, {"type": "close"})

    async def _flush(self) -> None:
        """Returns when the last packets are sent, or after a second."""
        try:
            await asyncio.wait_for(self._queue.flushed(), FLUSH)
        except asyncio.TimeoutError:
            pass

    def _close(self, reason: Mapping[str, str], last: Mapping[str, object]) -> None:
        """Ends the session by its last input."""
        if not self.is_open:
            return
        self._closed = reason
        if self._runner.close(last):
            self._end(self._closed)

    def _end(self, reason: Mapping[str, str]) -> None:
        """Ends what belongs to a session."""
        self._executor.abort_all("leaving")
        self._questions.withdraw_all()
        self._inbox.drop_streams()
        self._calls.lose_all(reason.get("message") or reason.get("text") or "this participant has left the room")
        self._view.end()
        self._emitter.emit("closed", {"reason": dict(reason)})
        self._notify_watchers()

    def _fail(self, error: Exception) -> None:
        """The core is unusable."""
        if self._failure is not None:
            return
        self._failure = error
        had_session = self.is_open
        self._runner.forget()
        self._is_stopped = True
        self._queue.interrupt()
        self._emitter.emit("error", {"error": error})
        if had_session:
            self._end({"kind": "closed", "text": str(error)})
        self._detach()
        release(self._port.room)

    def _detach(self) -> None:
        self._stop_listening()
        self._inbox.drop_early()

    def _notify_watchers(self) -> None:
        for changed in list(self._watchers):
            changed()

    def _count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1

    def _warn(self, message: str) -> None:
        self._emitter.emit("warning", {"message": message})


def _may_be_assistant(who: Mapping[str, Any]) -> bool:
    """Returns whether clients may take it for an assistant. A role wins over the kind."""
    role = who["attributes"].get("toolbridge.role")
    if who["kind"] == "agent":
        return role in (None, "assistant")
    return role == "assistant" and not who["canUpdateMetadata"]
