"""Drives a session of the core: passes it what happens in a room, and carries out its outputs."""

from __future__ import annotations

import asyncio
import inspect
import json
import secrets
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Protocol, Union, cast

from ._core import Session
from ._events import NAMES, Emitter, Event, EventName
from ._executor import THREADS, Executor, Failure, Threads, describe
from ._json import JsonObject, join_json, present
from ._room import Participant, ReceivedStream, port_of
from ._tool import NamedTool, ProgressStatus, StopReason

#: What the message of an exception begins with if the core has panicked.
PANIC = "panic: "

#: The largest frame that is read, in bytes. A stream that is longer is not read to its end.
MAX_FRAME = 16 * 1024 * 1024

#: What arrives before a join is known waits; at most this many packets and bytes. Their senders repeat what is dropped.
EARLY_PACKETS = 1_024
EARLY_BYTES = 4 * 1024 * 1024

#: The most streams that are read at the same time.
STREAMS = 64

#: The time limit of sending the last packets, in seconds.
FLUSH = 1.0

#: When the local participant is looked at again after a reconnection, in seconds: the SDK tells of another sid later, and without an
#: event.
RECHECKS = (0.02, 0.1, 0.5)

#: A timer that fires so much later than it was due, in seconds, is counted: something has blocked the loop.
STALL = 1.0


@dataclass(frozen=True, eq=False)
class ConsentRequest:
    """What a person is asked."""

    #: A question for a dialog, with the tool and the arguments. They come from others: show it as text.
    text: str
    #: Its ``name``, ``description`` and, if it has one, ``title``.
    tool: JsonObject
    arguments: JsonObject
    caller: str
    call: str
    #: A missing answer counts as a refusal then.
    deadline: datetime


#: Asks a person. If the question is withdrawn, an ``async`` function is cancelled.
AskPerson = Callable[[ConsentRequest], Union[bool, Awaitable[bool]]]

#: A rule about participants. One that raises counts as false.
Rule = Callable[[Participant], bool]

#: Chooses among several participants, by their identities. The second argument is the tool, or ``None``.
Chooser = Callable[[list[str], Union[str, None]], Union[str, None]]


@dataclass(frozen=True)
class DriverOptions:
    role: str
    #: The core's ``config``, except what the room says.
    config: Mapping[str, object]
    caps: Mapping[str, int]
    threads: int = THREADS
    consent: AskPerson | None = None
    admit: Rule | None = None
    may_stop: Rule | None = None
    choose: Chooser | None = None


class OpenCall(Protocol):
    """What becomes of a call."""

    def settled(self, result: JsonObject) -> None: ...
    def progress(self, event: Event) -> None: ...
    def lost(self, message: str) -> None: ...


class Refused(Exception):
    """The core refuses a call."""

    def __init__(self, error: JsonObject) -> None:
        super().__init__(error["message"])
        self.error = error


class Driver:
    def __init__(
        self, room: Any, loop: asyncio.AbstractEventLoop, emitter: Emitter, options: DriverOptions
    ) -> None:
        self._port = port_of(room)
        self._loop = loop
        self._emitter = emitter
        self._options = options
        self._threads = Threads(loop, options.threads)
        self._asking = Threads(loop, options.threads)
        self._executor = Executor(loop, self, self._threads, options.caps)
        self._queue = self._port.send_queue(
            loop, is_wanted=self._is_wanted, failed=self._send_failed, moved=self._drain
        )
        self._offered = "[]"
        self._session: Session | None = None
        self._zero = 0.0
        #: The local sid of the session.
        self._sid = ""
        #: What the core knows of the participants.
        self._told: dict[str, Participant] = {}
        self._changed: set[str] = set()
        self._is_flush_scheduled = False
        self._is_reconnecting = False
        self._early: list[tuple[str, bool, str, bytes]] = []
        self._early_bytes = 0
        self._streams: set[asyncio.Task[None]] = set()
        self._is_draining = False
        #: What the core was told of the queue: the bytes that wait, and how many reliable packets were queued before.
        self._backlog = (0, 0)
        self._timer: asyncio.TimerHandle | None = None
        #: When the timer is due, since zero.
        self._due: float | None = None
        self._calls: dict[int, OpenCall] = {}
        self._questions: dict[int, asyncio.Task[None]] = {}
        self._watchers: list[Callable[[], None]] = []
        self._is_stopped = False
        self._failure: Exception | None = None
        self._closed: Mapping[str, str] = {"kind": "closed"}
        #: What this shell counts, besides the core.
        self.counters: dict[str, int] = {}
        self._stop_listening = self._port.listen(self, loop)
        try:
            self._start()
        except BaseException:
            self._stop_listening()
            raise

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self._session is not None

    def offer(self, tools: Mapping[str, NamedTool]) -> None:
        """Replaces the tools."""
        self._executor.tools = tools
        text = json.dumps([tool.core for tool in tools.values()])
        if text == self._offered:
            return  # only the functions are others
        self._offered = text
        if self._session is not None:
            self._offer()

    def require_session(self) -> None:
        """Raises ``RuntimeError`` if the room is not connected."""
        if self._failure is not None:
            raise RuntimeError(str(self._failure))
        if self._is_stopped:
            raise RuntimeError("this participant was closed")
        self._start()  # the event of the connection may be on its way
        if self._session is None:
            raise RuntimeError("the room is not connected")

    def call(self, fields: Mapping[str, object], raw: Mapping[str, str], call: OpenCall) -> int:
        """Makes a call. ``raw`` has the fields that are JSON texts. Raises ``Refused``."""
        reply = self._handle({"type": "call", **fields}, raw)
        if reply is not None and reply["type"] == "called":
            key = int(reply["key"])
            self._calls[key] = call  # before the outputs, which may settle it
            self._drain()
            return key
        self._drain()
        raise Refused(_CLOSED if reply is None else reply["error"])

    def input(self, fields: Mapping[str, object], raw: Mapping[str, str] = {}) -> JsonObject | None:
        """Passes an input of the author. Raises ``ValueError`` if it is malformed."""
        reply = self._handle(fields, raw)
        self._drain()
        return reply

    def query(self, fields: Mapping[str, object]) -> JsonObject | None:
        """Asks the session."""
        session = self._session
        if session is None:
            return None
        return _parse(self._guard(lambda: session.handle(json.dumps(fields))))

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls a function after each change of the session, until the returned function is called."""
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    async def stop(self) -> None:
        """Says goodbye and leaves the room to others. Returns when the last packets are sent, or after a second."""
        if self._is_stopped:
            return
        self._say_goodbye()
        try:
            await asyncio.wait_for(self._queue.flushed(), FLUSH)
        except asyncio.TimeoutError:
            pass

    def _say_goodbye(self) -> None:
        self._is_stopped = True
        self._queue.drop_streams()
        self._close({"kind": "closed"}, {"type": "close"})
        self._detach()

    # What the room reports.

    def connected(self) -> None:
        self._safely(self._start)

    def reconnecting(self) -> None:
        if self._session is None or self._is_reconnecting:
            return
        self._is_reconnecting = True
        self._pass({"type": "connection", "state": "reconnecting"})

    def reconnected(self) -> None:
        self._safely(self._reconnected)

    def disconnected(self, reason: Mapping[str, str]) -> None:
        self._queue.interrupt()
        self._early.clear()
        self._early_bytes = 0
        self._close(reason, {"type": "closed", "reason": reason})

    def changed(self, identity: str) -> None:
        """Notes that a participant has changed. It is read after the SDK has finished: it emits events amid its changes."""
        self._changed.add(identity)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def packet(self, sender: str | None, is_reliable: bool, topic: str, data: bytes) -> None:
        if sender is None:
            # The SDK does not name a sender that is not announced yet. It repeats the packet.
            return self._count("unannounced_senders")
        self._safely(lambda: self._packet(sender, is_reliable, topic, data))

    def stream(self, stream: ReceivedStream) -> None:
        if len(self._streams) >= STREAMS:
            stream.close()
            self._warn(f"more than {STREAMS} byte streams arrive at once; one of {stream.sender} is not read")
            return
        task = self._loop.create_task(self._read(stream))
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

    def room_input(self, text: str, data: bytes | None = None) -> None:
        """Passes an input that the room has written itself, without its time."""
        self._safely(lambda: self._room_input(text, data))

    def failed(self, error: Exception) -> None:
        """The room has failed."""
        self._fail(error)

    def exiting(self) -> None:
        """The interpreter exits. The loop does not run any more."""
        if not self._is_stopped:
            self._say_goodbye()

    # What the executor reports.

    def job_started(self, key: int) -> None:
        self._pass({"type": "progress", "key": key})

    def progress(self, key: int, status: ProgressStatus, message: str | None, content: str | None) -> None:
        fields = {"type": "progress", "key": key, "status": status, **present(message=message)}
        self._pass(fields, {} if content is None else {"content": content})

    def settle(self, key: int, value: str | None, failure: Failure | None, partial: str | None = None) -> None:
        fields = {"type": "settle", "key": key}
        if failure is not None:
            error = join_json(failure, {} if partial is None else {"partial": partial})
            self._pass(fields, {"error": error})
        else:
            self._pass(fields, {"value": value or "null"})

    # Sessions.

    def _start(self) -> None:
        """Begins a session, if the room is connected."""
        port = self._port
        if self._session is not None or self._is_stopped or port.state != "connected":
            return
        local = port.local()
        config = {
            "lossy": True,
            "streams": True,
            "room": port.name,
            "overhead": port.overhead,
            "consent_available": self._options.consent is not None,
            **self._options.config,
        }
        self._zero = self._loop.time()
        self._sid = local["sid"]
        self._is_reconnecting = False
        self._backlog = (0, self._queue.pushed)
        self._changed.clear()
        create = {"type": "create", "at": 0, "role": self._options.role, "local": local, "config": config}
        try:
            self._session = Session.create(json.dumps({**create, "seed": secrets.token_hex(32)}))
        except ValueError as error:
            raise ValueError(f"the session cannot be created: {error}") from None
        self._told = {local["identity"]: local}
        self._offer()
        for who in port.participants():
            self._tell(who["identity"])
        self._emitter.emit("connected", {"identity": local["identity"], "room": port.name})

    def _offer(self) -> None:
        if self._offered == "[]" and self._options.role == "assistant":
            return
        reply = self._pass({"type": "offer", "partial": True}, {"tools": self._offered})
        if reply is not None and reply["left_out"]:
            self._emitter.emit("left_out", {"tools": reply["left_out"]})

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        self._safely(self._flush_changed)

    def _flush_changed(self) -> None:
        # While the room reconnects, the SDK forgets the participants and learns them again.
        if self._session is None or self._is_reconnecting or self._port.state != "connected":
            return
        if self._port.local()["sid"] != self._sid:
            return self._rejoined()
        changed, self._changed = self._changed, set()
        for identity in changed:
            self._tell(identity)

    def _tell(self, identity: str) -> None:
        """Tells the core of a participant what it does not know yet."""
        local = self._port.local()
        is_local = identity == local["identity"]
        now = local if is_local else self._port.participant(identity)
        was = self._told.get(identity)
        if was is not None and not is_local and (now is None or now["sid"] != was["sid"]):
            del self._told[identity]
            was_peer = {"identity": identity, "sid": was["sid"]}
            was = None
            self._pass({"type": "participant_left", "peer": was_peer})
        if now is None or now == was:
            return
        # For the local participant this input also says that it is announced. The SDK does not tell that, and the core assumes
        # it after a while; but a server that changes a participant has announced it.
        self._told[identity] = now
        self._pass({"type": "participant_joined", "participant": now if is_local else self._judge(now)})

    def _judge(self, who: Participant) -> Participant:
        """Evaluates the author's rules."""
        judged = dict(who)
        for name, rule in (("admitted", self._options.admit), ("may_stop", self._options.may_stop)):
            if rule is None:
                continue
            try:
                judged[name] = rule(who) is True
            except Exception as error:
                judged[name] = False
                self._warn(f'the rule for {who["identity"]} raised {describe(error)}; it counts as false')
        return judged

    def _reconnected(self) -> None:
        if self._session is None:
            return self._start()
        if self._port.local()["sid"] != self._sid:
            return self._rejoined()
        if self._is_reconnecting:
            self._is_reconnecting = False
            self._pass({"type": "connection", "state": "connected"})
        self._changed.update(self._told, (who["identity"] for who in self._port.participants()))
        self._flush_changed()
        self._pass_early()
        for delay in RECHECKS:
            self._loop.call_later(delay, self._flush)

    def _rejoined(self) -> None:
        """The local participant has another sid: no packet of the old join may be sent in the new one."""
        local, present_now = self._port.local(), self._port.participants()
        for packet in self._queue.interrupt():
            self._pass({"type": "send_failed", "packet": packet, "why": "interrupted"})
        self._is_reconnecting = False
        self._sid = local["sid"]
        self._changed.clear()
        self._told = {who["identity"]: who for who in [local, *present_now]}
        self._pass({"type": "rejoined", "local": local, "present": [self._judge(who) for who in present_now]})
        self._pass_early()

    def _packet(self, sender: str, is_reliable: bool, topic: str, data: bytes) -> None:
        if self._session is None:
            self._start()  # the packet may be earlier than the event of the connection
        if self._session is None:
            return
        if self._is_reconnecting and self._port.local()["sid"] != self._sid:
            # It belongs to a join that has not begun.
            if len(self._early) < EARLY_PACKETS and self._early_bytes + len(data) <= EARLY_BYTES:
                self._early.append((sender, is_reliable, topic, data))
                self._early_bytes += len(data)
            return
        self._flush_changed()
        # Not all changes are events of the SDK.
        if not self._is_reconnecting:
            self._tell(sender)
        lane = "reliable" if is_reliable else "lossy"
        self._pass({"type": "packet", "lane": lane, "topic": topic, "from": self._port.peer(sender)}, {}, data)

    def _room_input(self, text: str, data: bytes | None) -> None:
        session = self._session
        if session is None:
            return
        self._flush_changed()
        timed = f'{text[:-1]},"at":{self._now()}}}'
        self._guard(lambda: session.handle(timed, data))
        self._drain()

    def _pass_early(self) -> None:
        early, self._early, self._early_bytes = self._early, [], 0
        for packet in early:
            self._packet(*packet)

    async def _read(self, stream: ReceivedStream) -> None:
        """Reads a whole stream. One that is cut off, or longer than it said or than any frame, is dropped."""
        most = min(stream.length or MAX_FRAME, MAX_FRAME)
        # A stream that says that it is too long is refused by the core, by its header.
        is_too_long = stream.length is not None and stream.length > MAX_FRAME
        parts: list[bytes] = []
        size = 0
        try:
            if not is_too_long:
                async for chunk in stream.chunks:
                    size += len(chunk)
                    parts.append(chunk)
                    if size > most:
                        break  # the core sees that it is too long
        except Exception:
            return self._count("broken_streams")  # its sender repeats it
        finally:
            stream.close()
        self._flush_changed()
        header = {
            "from": self._port.peer(stream.sender),
            "id": stream.id,
            "topic": stream.topic,
            "attributes": dict(stream.attributes),
            **present(length=stream.length),
        }
        if is_too_long:
            self._pass({"type": "stream_header", **header})
        else:
            self._pass({"type": "stream", **header}, {}, b"".join(parts))

    # Inputs and outputs.

    def _pass(self, fields: Mapping[str, object], raw: Mapping[str, str] = {}, data: bytes | None = None) -> JsonObject | None:
        """Passes an input of the room or of a tool, and carries out what follows."""
        reply = self._try(fields, raw, data)
        self._drain()
        return reply

    def _try(self, fields: Mapping[str, object], raw: Mapping[str, str] = {}, data: bytes | None = None) -> JsonObject | None:
        """Passes an input that nobody waits for: one that is malformed has no effect, and is reported."""
        try:
            return self._handle(fields, raw, data)
        except ValueError as error:
            self._warn(str(error))
            return None

    def _handle(self, fields: Mapping[str, object], raw: Mapping[str, str], data: bytes | None = None) -> JsonObject | None:
        session = self._session
        if session is None:
            return None
        text = join_json({**fields, "at": self._now()}, raw)
        return _parse(self._guard(lambda: session.handle(text, data)))

    def _guard(self, run: Callable[[], Any]) -> Any:
        """Runs a function of the core. A panic closes this participant."""
        try:
            return run()
        except RuntimeError as error:
            if not str(error).startswith(PANIC):
                raise
            self._fail(error)
            return None

    def _safely(self, run: Callable[[], None]) -> None:
        """Runs what an event of the SDK causes: it must not raise there."""
        try:
            run()
        except Exception as error:
            self._fail(error)

    def _now(self) -> float:
        return round((self._loop.time() - self._zero) * 1000, 3)

    def _drain(self) -> None:
        """Carries out all outputs, and sets the timer."""
        if self._is_draining:
            return
        self._is_draining = True
        try:
            self._carry_out()
        finally:
            self._is_draining = False
        self._set_timer()
        for changed in list(self._watchers):
            changed()

    def _carry_out(self) -> None:
        # A flood of packets does not delay timers.
        if self._due is not None and self._due <= self._now():
            self._timed_out()
        while (text := self._next() or self._next_after_backlog()) is not None:
            self._carry_out_one(json.loads(text))

    def _next_after_backlog(self) -> str | None:
        """Reports the bytes that wait to be sent, if the core cannot know them, and returns the output that follows."""
        backlog = (self._queue.backlog, self._queue.pushed)
        if backlog == self._backlog:
            return None
        self._backlog = backlog
        self._try({"type": "backlog", "size": backlog[0]})
        return self._next()

    def _next(self) -> str | None:
        session = self._session
        return None if session is None else cast("str | None", self._guard(session.next_output))

    def _carry_out_one(self, output: JsonObject) -> None:
        kind = output["type"]
        if kind == "transmit":
            self._transmit(output)
        elif kind == "execute":
            self._executor.execute(output, self._zero + output["deadline"] / 1000)
        elif kind == "ask":
            self._questions[output["key"]] = self._loop.create_task(self._ask(output))
        elif kind == "select":
            self._select(output)
        elif kind == "abort":
            self._abort(output["key"], output["reason"])
        elif kind == "settled":
            call = self._calls.pop(output["key"], None)
            if call is not None:
                call.settled(output)
        elif kind == "event":
            self._event(output)

    def _transmit(self, packet: JsonObject) -> None:
        session = self._session
        data = None if session is None else self._guard(session.take_bytes)
        if data is not None and not self._queue.push(packet, data):
            self._try({"type": "send_failed", "packet": packet["packet"], "why": "queue_full"})

    def _send_failed(self, packet: int, failure: Mapping[str, Any]) -> None:
        self._pass({"type": "send_failed", "packet": packet, **failure})

    def _is_wanted(self, packet: int) -> bool:
        reply = self.query({"type": "is_wanted", "packet": packet})
        return reply is not None and bool(reply["wanted"])

    async def _ask(self, ask: JsonObject) -> None:
        key, consent, session = ask["key"], self._options.consent, self._session
        refusal = self._executor.check(ask["tool"]["name"], ask["arguments"])
        allowed = False
        if refusal is None and consent is not None:
            try:
                request = self._question(ask)
                if inspect.iscoroutinefunction(consent):
                    answer = consent(request)
                else:
                    answer = await self._asking.run(lambda: consent(request))
                allowed = (await answer if inspect.isawaitable(answer) else answer) is True
            except Exception as error:
                self._warn(f"the consent function raised {describe(error)}; it counts as a refusal")
        if self._session is not session or self._questions.pop(key, None) is None:
            return  # withdrawn
        if refusal is not None:
            self.settle(key, None, refusal)
        else:
            self._pass({"type": "consent", "key": key, "allowed": allowed})

    def _question(self, ask: JsonObject) -> ConsentRequest:
        about, arguments = ask["tool"], ask["arguments"]
        shown = json.dumps(arguments, indent=1, ensure_ascii=False)
        shown = shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}…"
        text = f'{ask["caller"]} wants to run "{about.get("title", about["name"])}": {about["description"]}\n{shown}'
        left = timedelta(milliseconds=ask["until"] - self._now())
        described = {name: about[name] for name in ("name", "description", "title") if name in about}
        deadline = datetime.now(timezone.utc) + left
        return ConsentRequest(text, described, arguments, ask["caller"], ask["call"], deadline)

    def _select(self, select: JsonObject) -> None:
        identity: str | None = None
        choose = self._options.choose
        try:
            if choose is not None:
                identity = choose([it["identity"] for it in select["candidates"]], select.get("tool"))
        except Exception as error:
            self._warn(f"the function that chooses raised {describe(error)}; nobody is chosen")
        self._try({"type": "select", "key": select["key"], **present(identity=identity)})

    def _abort(self, key: int, reason: StopReason) -> None:
        question = self._questions.pop(key, None)
        if question is not None:
            question.cancel()
        self._executor.abort(key, reason)

    def _event(self, output: JsonObject) -> None:
        name = output["event"]
        event = {field: value for field, value in output.items() if field not in ("type", "event")}
        if name == "closed":
            self._closed = event["reason"]  # reported when everything is closed
            return
        if name == "progress" and "key" in event:
            call = self._calls.get(event["key"])
            if call is not None:
                call.progress(event)
        if "took" in event:
            event["took"] /= 1000
        if name == "not_allowed":
            event["message"] = "the local token does not allow sending data (canPublishData)"
        if name in NAMES:
            self._emitter.emit(cast(EventName, name), event)

    def _set_timer(self) -> None:
        session = self._session
        due = None if session is None else self._guard(session.next_deadline)
        if due is not None and due == self._due and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = due
        if due is not None:
            self._timer = self._loop.call_at(self._zero + due / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._due is not None:
            self._safely(self._drain)

    def _timed_out(self) -> None:
        late, self._due = self._now() - (self._due or 0), None
        if late > STALL * 1000:
            self._count("blocked_loop")
        self._try({"type": "timeout"})

    # The end.

    def _close(self, reason: Mapping[str, str], last: Mapping[str, object]) -> None:
        """Ends the session by its last input."""
        session = self._session
        if session is None:
            return
        self._closed = reason
        self._try(last)
        self._carry_out()  # also if this is called amid other outputs
        if self._session is not session:
            return  # it panicked
        self._session = None
        session.free()
        self._end(self._closed)

    def _end(self, reason: Mapping[str, str]) -> None:
        """Ends what belongs to a session."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due = None
        self._executor.abort_all("leaving")
        questions, self._questions = self._questions, {}
        for question in questions.values():
            question.cancel()
        for task in self._streams:
            task.cancel()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.lost(reason.get("message") or reason.get("text") or "this participant has left the room")
        self._told = {}
        self._emitter.emit("closed", {"reason": dict(reason)})
        for changed in list(self._watchers):
            changed()

    def _fail(self, error: Exception) -> None:
        """The core is unusable."""
        if self._failure is not None:
            return
        self._failure = error
        had_session = self._session is not None
        self._session = None
        self._is_stopped = True
        self._queue.interrupt()
        self._emitter.emit("error", {"error": error})
        if had_session:
            self._end({"kind": "closed", "text": str(error)})
        self._detach()

    def _detach(self) -> None:
        self._stop_listening()
        release(self._port.room)
        self._early.clear()

    def _count(self, name: str) -> None:
        self.counters[name] = self.counters.get(name, 0) + 1

    def _warn(self, message: str) -> None:
        self._emitter.emit("warning", {"message": message})


_CLOSED: JsonObject = {
    "kind": "closed",
    "code": "closed",
    "message": "this participant is not in the room",
    "may_have_run": False,
}

#: The longest arguments that a question shows, in characters.
_MAX_SHOWN = 1_000

#: The rooms that are in use, and by what.
_used: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def claim(room: Any, what: str) -> None:
    """Claims a room for one participant of toolbridge. Raises ``RuntimeError`` if another one has it."""
    used = _used.get(room)
    if used is not None:
        raise RuntimeError(f"this room already has {used}; close it before you create {what}")
    _used[room] = what


def release(room: Any) -> None:
    """Frees a room for another participant of toolbridge."""
    _used.pop(room, None)


def _parse(text: str | None) -> JsonObject | None:
    return None if text is None else cast(JsonObject, json.loads(text))

