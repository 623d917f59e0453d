"""Joins a room as a participant of its own, on a thread of the native module: see ``BaseParticipant.join``."""

from __future__ import annotations

import asyncio
import atexit
import json
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import _core
from ._e2ee import E2eeKeys
from ._errors import JoinError
from ._room import ENCRYPTION_OVERHEAD, Participant, Port

if TYPE_CHECKING:
    from ._types import PortEvents, RoomState

#: How long the interpreter waits at its exit until the last packets are sent and acknowledged, in seconds.
EXIT = 2.0


class JoinedRoom(Port):
    """A room that the native module's thread joins, and the port of its driver.

    The thread calls nothing of Python. It writes a byte into a socket when events wait, and the loop reads them.
    """

    def __init__(self, url: str, token: str, loop: asyncio.AbstractEventLoop, keys: E2eeKeys | None = None) -> None:
        kind = getattr(_core, "JoinedRoom", None)
        if kind is None:
            raise NotImplementedError("this build of toolbridge cannot join rooms by itself; pass a livekit.rtc.Room")
        self._state: RoomState = "disconnected"
        self._name = ""
        # The length of a compressed frame tells whoever sees lengths how much its parts resemble each other.
        self.config = {"compress": keys is None, "hasQueue": True}
        self._overhead = 0 if keys is None else ENCRYPTION_OVERHEAD
        self._core = kind(url, token, None if keys is None else keys._core)
        self._loop = loop
        self._joined: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._local: Participant = {}
        self._participants: dict[str, Participant] = {}
        self._events: PortEvents | None = None
        self._queue: JoinedQueue | None = None
        loop.add_reader(self._core.fileno(), _read, weakref.ref(self))
        _joined.add(self)

    @property
    def room(self) -> JoinedRoom:
        return self

    @property
    def state(self) -> RoomState:
        return self._state

    @property
    def name(self) -> str:
        return self._name

    @property
    def overhead(self) -> int:
        return self._overhead

    def check_process(self) -> None:
        self._core.check_process()

    async def joined(self, stop: Callable[[], Awaitable[None]]) -> None:
        """Returns when the room is joined. Raises ``JoinError`` if that fails."""
        await self._joined
        self._at_end = _at_end(stop)
        await self._at_end.__anext__()

    def leave(self) -> None:
        self._core.leave()

    def local(self) -> Participant:
        return self._local

    def participants(self) -> list[Participant]:
        return list(self._participants.values())

    def participant(self, identity: str) -> Participant | None:
        return self._participants.get(identity)

    def sender(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        is_wanted: Callable[[int], bool],
        sent: Callable[[int], None],
        failed: Callable[[int, Mapping[str, Any]], None],
    ) -> JoinedQueue:
        self._queue = JoinedQueue(self._core, is_wanted, sent, self._ended)
        return self._queue

    def listen(self, events: PortEvents, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        # Its end also leaves the room.
        self._events = events

        def stop() -> None:
            self._events = None
            self._core.leave()

        return stop

    def exit(self) -> None:
        """Says goodbye when the interpreter exits. The loop does not run any more."""
        self._core.check_process()
        try:
            if self._events is not None:
                self._events.exiting()
        finally:
            self._core.leave()
            self._core.wait(EXIT)

    def read(self) -> None:
        """Handles what waits."""
        for name, text, data in self._core.take():
            self._handle(name, text, data)

    def _handle(self, name: str, text: str, data: bytes | None) -> None:
        events = self._events
        if name == "ended" or name == "panicked":
            self._end(text)
        elif name == "joined":
            assert data is not None
            self._name = data.decode()
            self._connected(json.loads(text))
            if not self._joined.done():
                self._joined.set_result(None)
            if events is not None:
                events.connected()
        elif name == "failed":
            if not self._joined.done():
                self._joined.set_exception(JoinError(in_python(text)))
        elif name == "sent":
            if self._queue is not None:
                self._queue.sent(int(text) if text else None)
        elif events is None:
            return  # the participant is closed
        elif name == "participant_joined":
            who = json.loads(text)["participant"]
            if who["identity"] == self._local["identity"]:
                # It is announced now. The driver tells the core of others itself, since it judges them.
                self._local = who
                events.room_input(text)
            else:
                self._participants[who["identity"]] = who
                events.changed(who["identity"])
        elif name == "participant_left":
            peer = json.loads(text)["peer"]
            found = self._participants.get(peer["identity"])
            if found is not None and found["sid"] == peer["sid"]:
                del self._participants[peer["identity"]]
                events.changed(peer["identity"])
        elif name == "reconnecting":
            self._state = "reconnecting"
            events.reconnecting()
        elif name == "connected":
            self._connected(json.loads(text))
            events.reconnected()
        elif name == "closed":
            self._state = "disconnected"
            events.disconnected(json.loads(text)["reason"])
        else:
            events.room_input(text, data)

    def _connected(self, participants: Mapping[str, Any]) -> None:
        self._state = "connected"
        self._local = participants["local"]
        self._participants = {who["identity"]: who for who in participants["present"]}

    def _end(self, panic: str) -> None:
        self._state = "disconnected"
        self._loop.remove_reader(self._core.fileno())
        if not self._joined.done():
            self._joined.set_exception(JoinError(panic or "the participant was closed while it joined"))
        if not self._joined.cancelled():
            self._joined.exception()  # nobody may wait for it
        if not self._ended.done():
            self._ended.set_result(None)
        events = self._events
        if panic and events is not None:
            events.failed(RuntimeError(panic))


class JoinedQueue:
    """The packets that wait to be sent. The transport of the native module keeps and orders them."""

    def __init__(self, core: Any, is_wanted: Callable[[int], bool], sent: Callable[[int], None], ended: asyncio.Future[None]) -> None:
        self._core = core
        self._is_wanted = is_wanted
        self._sent = sent
        self._ended = ended
        self._streams: set[int] = set()
        # How many reliable packets were queued.
        self._pushed = 0
        # What the core was told of the bytes that wait, and of the packets.
        self._reported = (0, 0)

    def begin_reports(self) -> None:
        """Begins to report to a new session, which assumes that nothing waits."""
        self._reported = (0, self._pushed)

    def take_backlog(self) -> int | None:
        """The bytes that wait on the reliable lane, if that has changed in a way that the core cannot know."""
        now = (int(self._core.backlog()), self._pushed)
        if now == self._reported:
            return None
        self._reported = now
        return now[0]

    def send(self, packet: dict[str, Any], data: bytes) -> bool:
        """Queues a packet. Returns false if the queue is full."""
        key, stream, is_reliable = packet["packet"], packet.get("stream"), packet["lane"] == "reliable"
        # A packet may stop the call of a stream that waits.
        for other in [it for it in self._streams if not self._is_wanted(it)]:
            self._streams.discard(other)
            self._core.cancel(other)
        name = None if stream is None else stream["id"]
        queued: bool = self._core.send(
            key, packet["to"], packet["broadcast"], packet["topic"], is_reliable, packet["overtakes"], name, data
        )
        if queued:
            self._pushed += is_reliable
            if stream is not None:
                self._streams.add(key)
        return queued

    def sent(self, stream: int | None) -> None:
        if stream is not None:
            self._streams.discard(stream)
        self._sent(stream or 0)  # the core keeps no queue in such a room, and looks at the backlog

    def interrupt(self) -> list[int]:
        """Gives up all packets, and returns their keys."""
        self._streams.clear()
        keys: list[int] = self._core.interrupt()
        return keys

    def drop_streams(self) -> None:
        """Gives up the byte streams that wait: a goodbye would wait for them."""
        self._streams.clear()
        self._core.drop_streams()

    async def flushed(self) -> None:
        """Returns when the room was left."""
        await asyncio.shield(self._ended)


#: The rooms that may have to be left when the interpreter exits.
_joined: weakref.WeakSet[JoinedRoom] = weakref.WeakSet()


async def _at_end(stop: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Stops a participant when ``asyncio.run`` ends its loop: that ends all asynchronous generators which have begun."""
    try:
        yield
    finally:
        await stop()


def _read(reference: weakref.ref[JoinedRoom]) -> None:
    room = reference()
    if room is not None:
        room.read()


@atexit.register
def _leave_all() -> None:
    for room in list(_joined):
        try:
            room.exit()
        except Exception:  # the process was forked, or the loop is closed
            continue


#: Advice of the transport that names settings of Rust, and what a program in Python can do.
_ADVICE = (
    ("pass its root certificate (`ConnectOptions::root_certificates`)", "add its root certificate to those of the system"),
    ("(`ConnectOptions::relay_only` or the server requires one)", "(the server requires one)"),
    ("try again, or raise `ConnectOptions::join_timeout`", "try again"),
)


def in_python(text: str) -> str:
    """A text of the transport without settings that this package does not have."""
    for advice, own in _ADVICE:
        text = text.replace(advice, own)
    return text
