"""Passes what arrives to the core: packets and byte streams, also those that arrive too early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ._executor import describe
from ._json import present
from ._room import Port, ReceivedStream
from ._room_view import RoomView
from ._session_runner import SessionRunner

#: What arrives before a join is known waits; at most this many packets, bytes and streams. Senders repeat the requests and results
#: that are dropped. Of a goodbye that is dropped, the room's report of its sender's leave takes the place.
EARLY_PACKETS = 1_024
EARLY_BYTES = 4 * 1024 * 1024
EARLY_STREAMS = 64

#: The most streams that are read at the same time. The core drops those that stall, which nobody tells their readers: so the oldest
#: reader gives way.
READERS = 1_024


class Inbox:
    def __init__(
        self,
        port: Port,
        loop: asyncio.AbstractEventLoop,
        runner: SessionRunner,
        view: RoomView,
        *,
        start: Callable[[], None],
        count: Callable[[str], None],
    ) -> None:
        self._port = port
        self._loop = loop
        self._runner = runner
        self._view = view
        #: Begins a session if the room is connected.
        self._start = start
        self._count = count
        self._early: list[tuple[str, bool, str, bytes]] = []
        self._early_bytes = 0
        self._early_streams: list[ReceivedStream] = []
        self._readers: dict[asyncio.Task[None], None] = {}

    def packet(self, sender: str | None, is_reliable: bool, topic: str, data: bytes) -> None:
        if sender is None:
            # The SDK does not name a sender that is not announced yet. It repeats the packet.
            return self._count("unannounced_senders")
        self._runner.safely(lambda: self._packet(sender, is_reliable, topic, data))

    def stream(self, stream: ReceivedStream) -> None:
        # Copied now: the SDK adds the attributes of the trailer, which any participant may have sent.
        stream = stream.replace(attributes=dict(stream.attributes))
        self._runner.safely(lambda: self._stream(stream))

    def pass_early(self) -> None:
        """Passes the packets that waited."""
        packets, streams = self._early, self._early_streams
        self._early, self._early_bytes, self._early_streams = [], 0, []
        for packet in packets:
            self._packet(*packet)
        for stream in streams:
            self._stream(stream)

    def drop_early(self) -> None:
        """Drops the packets and streams that wait."""
        self._early, self._early_bytes = [], 0
        for stream in self._early_streams:
            stream.close()
        self._early_streams = []

    def drop_streams(self) -> None:
        """Stops reading, because the session has ended."""
        for reader in self._readers:
            reader.cancel()

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
        self._notice(sender)
        lane = "reliable" if is_reliable else "lossy"
        self._runner.feed({"type": "packet", "lane": lane, "topic": topic, "from": self._port.peer(sender)}, {}, data)

    def _notice(self, sender: str) -> None:
        """Reports what is new of the sender: not all changes are events of the SDK."""
        self._view.flush()
        if not self._view.is_reconnecting:
            self._view.report(sender)

    def _stream(self, stream: ReceivedStream) -> None:
        """Reads a stream, if the core wants it: its limits are the core's."""
        if not self._runner.is_open:
            self._start()
        if not self._runner.is_open or self._view.is_behind:
            if self._runner.is_open and len(self._early_streams) < EARLY_STREAMS:
                self._early_streams.append(stream)
            else:
                stream.close()
                self._count("dropped_streams")
            return
        self._notice(stream.sender)
        named = {"from": self._port.peer(stream.sender), "id": stream.id}
        header = {"topic": stream.topic, "attributes": stream.attributes, **present(length=stream.length)}
        if not self._is_wanted({"type": "stream_header", **named, **header}):
            return stream.close()
        if len(self._readers) >= READERS:
            next(iter(self._readers)).cancel()
            self._count("dropped_streams")
        reader = self._loop.create_task(self._read(stream, named))
        self._readers[reader] = None
        reader.add_done_callback(lambda _: self._readers.pop(reader))

    async def _read(self, stream: ReceivedStream, named: dict[str, Any]) -> None:
        reason, index = "", 0
        try:
            async for chunk in stream.chunks:
                if not self._is_wanted({"type": "stream_chunk", **named, "index": index}, chunk):
                    return
                index += 1
        except Exception as error:
            reason = describe(error)
        finally:
            stream.close()
        self._runner.feed({"type": "stream_trailer", **named, "reason": reason})

    def _is_wanted(self, part: dict[str, Any], data: bytes | None = None) -> bool:
        """Passes a part of a stream. Returns whether the rest is to be read."""
        reply = self._runner.feed(part, {}, data)
        return reply is not None and bool(reply["wanted"])
