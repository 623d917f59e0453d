"""Passes what arrives to the core: packets, also those that arrive too early, and whole byte streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ._json import present
from ._room import ReceivedStream, RoomPort
from ._room_view import RoomView
from ._session_runner import SessionRunner

#: The largest frame that is read, in bytes. A stream that is longer is not read to its end.
MAX_FRAME = 16 * 1024 * 1024

#: What arrives before a join is known waits; at most this many packets and bytes. Their senders repeat what is dropped.
EARLY_PACKETS = 1_024
EARLY_BYTES = 4 * 1024 * 1024

#: The most streams that are read at the same time.
STREAMS = 64


class Inbox:
    def __init__(
        self,
        port: RoomPort,
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
        self._streams: set[asyncio.Task[None]] = set()

    def packet(self, sender: str | None, is_reliable: bool, topic: str, data: bytes) -> None:
        if sender is None:
            # The SDK does not name a sender that is not announced yet. It repeats the packet.
            return self._count("unannounced_senders")
        self._runner.safely(lambda: self._packet(sender, is_reliable, topic, data))

    def stream(self, stream: ReceivedStream) -> None:
        if len(self._streams) >= STREAMS:
            stream.close()
            self._warn(f"more than {STREAMS} byte streams arrive at once; one of {stream.sender} is not read")
            return
        task = self._loop.create_task(self._read(stream))
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

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
        for task in self._streams:
            task.cancel()

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
        self._view.flush()
        header = {
            "from": self._port.peer(stream.sender),
            "id": stream.id,
            "topic": stream.topic,
            "attributes": dict(stream.attributes),
            **present(length=stream.length),
        }
        if is_too_long:
            self._runner.feed({"type": "stream_header", **header})
        else:
            self._runner.feed({"type": "stream", **header}, {}, b"".join(parts))
