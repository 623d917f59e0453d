"""Passes what arrives to the core: packets, also those that arrive too early, and whole byte streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ._json import present
from ._room import Port, ReceivedStream
from ._room_view import RoomView
from ._session_runner import SessionRunner

#: The largest frame that is read, in bytes. A stream that is longer is not read to its end.
MAX_FRAME = 16 * 1024 * 1024

#: What arrives before a join is known waits; at most this many packets and bytes. Senders repeat the requests and results that are
#: dropped. Of a goodbye that is dropped, the room's report of its sender's leave takes the place.
EARLY_PACKETS = 1_024
EARLY_BYTES = 4 * 1024 * 1024

#: The most streams of one sender that are read at the same time, and the bytes of them that are held: two frames of the largest size.
#: Those of others are not affected.
STREAMS = 64
STREAM_BYTES = 2 * MAX_FRAME

#: The same for all senders together. Beyond them, the sender that has most loses a stream: those that have little are not affected.
ALL_STREAMS = 1_024
ALL_STREAM_BYTES = 4 * STREAM_BYTES

#: A stream without a part for so long, or up to twice as long, in seconds, is given up.
STREAM_IDLE = 10.0


class Inbox:
    def __init__(
        self,
        port: Port,
        loop: asyncio.AbstractEventLoop,
        runner: SessionRunner,
        view: RoomView,
        *,
        start: Callable[[], None],
        warn: Callable[[str], None],
        count: Callable[[str], None],
    ) -> None:
        self._port = port
        self._loop = loop
        self._runner = runner
        self._view = view
        #: Begins a session if the room is connected.
        self._start = start
        self._warn = warn
        self._count = count
        self._early: list[tuple[str, bool, str, bytes]] = []
        self._early_bytes = 0
        self._senders: dict[str, _Sender] = {}
        self._streams = 0
        self._stream_bytes = 0

    def packet(self, sender: str | None, is_reliable: bool, topic: str, data: bytes) -> None:
        if sender is None:
            # The SDK does not name a sender that is not announced yet. It repeats the packet.
            return self._count("unannounced_senders")
        self._runner.safely(lambda: self._packet(sender, is_reliable, topic, data))

    def stream(self, stream: ReceivedStream) -> None:
        sender = self._senders.get(stream.sender)
        if sender is not None and len(sender.streams) >= STREAMS:
            stream.close()
            self._warn(f"more than {STREAMS} byte streams of {stream.sender} arrive at once; one is not read")
            return
        if self._streams >= ALL_STREAMS:
            self._drop_one(max(self._senders.values(), key=lambda it: len(it.streams)))
        sender = self._senders.setdefault(stream.sender, _Sender())
        # Copied now: the SDK adds the attributes of the trailer, which any participant may have sent.
        reading = _Reading(self._loop, stream, dict(stream.attributes), lambda: self._count("broken_streams"))
        sender.streams.add(reading)
        self._streams += 1
        reading.task = self._loop.create_task(self._read(reading, sender))

    def pass_early(self) -> None:
        """Passes the packets that waited."""
        early = self._early
        self.drop_early()
        for packet in early:
            self._packet(*packet)

    def drop_early(self) -> None:
        """Drops the packets that wait."""
        self._early = []
        self._early_bytes = 0

    def drop_streams(self) -> None:
        """Stops reading, because the session has ended."""
        for sender in self._senders.values():
            for reading in sender.streams:
                reading.cancel()

    def _packet(self, sender: str, is_reliable: bool, topic: str, data: bytes) -> None:
        if not self._runner.is_open:
            self._start()  # the packet may be earlier than the event of the connection
        if not self._runner.is_open:
            return
        if self._view.is_behind:
            # It belongs to a join that has not begun.
            if len(self._early) < EARLY_PACKETS and self._early_bytes + len(data) <= EARLY_BYTES:
                self._early.append((sender, is_reliable, topic, data))
                self._early_bytes += len(data)
            return
        self._view.flush()
        # Not all changes are events of the SDK.
        if not self._view.is_reconnecting:
            self._view.report(sender)
        lane = "reliable" if is_reliable else "lossy"
        self._runner.feed({"type": "packet", "lane": lane, "topic": topic, "from": self._port.peer(sender)}, {}, data)

    async def _read(self, reading: _Reading, sender: _Sender) -> None:
        """Reads a whole stream. One that is cut off, or longer than it said or than any frame, is dropped."""
        stream = reading.stream
        most = min(stream.length or MAX_FRAME, MAX_FRAME)
        # A stream that says that it is too long is refused by the core, by its header.
        is_too_long = stream.length is not None and stream.length > MAX_FRAME
        try:
            if not is_too_long:
                async for chunk in stream.chunks:
                    reading.add(chunk)
                    sender.bytes += len(chunk)
                    self._stream_bytes += len(chunk)
                    if reading.size > most:
                        break  # the core sees that it is too long
                    if sender.bytes > STREAM_BYTES:
                        return self._count("broken_streams")
                    if self._stream_bytes > ALL_STREAM_BYTES:
                        self._drop_one(max(self._senders.values(), key=lambda it: it.bytes))
                        if reading not in sender.streams:
                            return
        except Exception:
            return self._count("broken_streams")  # its sender sends it again if it knows, or the call ends by its time limit
        finally:
            self._forget(reading, sender)
        self._view.flush()
        header = {
            "from": self._port.peer(stream.sender),
            "id": stream.id,
            "topic": stream.topic,
            "attributes": reading.attributes,
            **present(length=stream.length),
        }
        if is_too_long:
            self._runner.feed({"type": "stream_header", **header})
        else:
            self._runner.feed({"type": "stream", **header}, {}, b"".join(reading.parts))

    def _drop_one(self, sender: _Sender) -> None:
        """Drops the largest stream of a sender, to make room. Its call ends by its time limit."""
        largest = max(sender.streams, key=lambda it: it.size)
        self._forget(largest, sender)  # now, and not when its task notices that it is cancelled
        largest.cancel()
        self._count("dropped_streams")

    def _forget(self, reading: _Reading, sender: _Sender) -> None:
        """Ends the reading of a stream, once."""
        if reading not in sender.streams:
            return
        sender.streams.remove(reading)
        sender.bytes -= reading.size
        self._streams -= 1
        self._stream_bytes -= reading.size
        if not sender.streams:
            del self._senders[reading.stream.sender]
        reading.end()


class _Sender:
    """A participant whose streams are being read."""

    def __init__(self) -> None:
        self.streams: set[_Reading] = set()
        #: The bytes of all of them.
        self.bytes = 0


class _Reading:
    """A stream that is being read."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: ReceivedStream,
        attributes: dict[str, str],
        stalled: Callable[[], None],
    ) -> None:
        self.stream = stream
        self.attributes = attributes
        self.parts: list[bytes] = []
        self.size = 0
        self.task: asyncio.Task[None] | None = None
        self._loop = loop
        #: Called if it is given up because no part comes.
        self._stalled = stalled
        self._is_idle = False
        self._timer = loop.call_later(STREAM_IDLE, self._check)

    def add(self, part: bytes) -> None:
        self._is_idle = False
        self.parts.append(part)
        self.size += len(part)

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def end(self) -> None:
        self._timer.cancel()
        self.stream.close()

    def _check(self) -> None:
        if self._is_idle:
            self._stalled()
            return self.cancel()
        self._is_idle = True
        self._timer = self._loop.call_later(STREAM_IDLE, self._check)
