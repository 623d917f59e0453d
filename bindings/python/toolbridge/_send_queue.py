"""Queues the packets that wait to be published, as ``src/transport/send_queue.rs`` does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._room import RoomPort

#: The largest number of queued packets.
CAP = 4_096

#: The largest size of all queued packets, in bytes: two frames of the largest size. A single packet may exceed it.
CAP_BYTES = 32 * 1024 * 1024

#: Additional room for packets that overtake, so that a queue full of large packets does not block stops.
RESERVE = 1_024
RESERVE_BYTES = 1024 * 1024


@dataclass(eq=False)
class _Queued:
    packet: dict[str, Any]
    bytes: bytes

    @property
    def is_reliable(self) -> bool:
        return bool(self.packet["lane"] == "reliable")


@dataclass(eq=False)
class _Lane:
    """Packets of one lane are published one after the other."""

    waiting: deque[_Queued] = field(default_factory=deque)
    sending: _Queued | None = None
    task: asyncio.Task[None] | None = None


class SendQueue:
    def __init__(
        self,
        port: RoomPort,
        loop: asyncio.AbstractEventLoop,
        *,
        is_wanted: Callable[[int], bool],
        failed: Callable[[int, dict[str, Any]], None],
        moved: Callable[[], None],
    ) -> None:
        self._port = port
        self._loop = loop
        #: Whether the core still wants this large packet to be sent.
        self._is_wanted = is_wanted
        #: Called for a packet that was not sent.
        self._failed = failed
        #: Called after each packet that was sent, or failed.
        self._moved = moved
        # `urgent` packets do not wait for byte streams.
        self._lanes = {name: _Lane() for name in ("urgent", "ordered", "lossy")}
        # Grows when all packets are given up. The end of one that the SDK still sends then is ignored.
        self._generation = 0
        self._count = self._bytes = self._streams = 0
        # The bytes that wait on the reliable lane.
        self._backlog = 0
        # How many reliable packets were queued.
        self._pushed = 0
        # What the core was told of the two.
        self._reported = (0, 0)
        self._idle: list[asyncio.Future[None]] = []

    def push(self, packet: dict[str, Any], data: bytes) -> bool:
        """Queues a packet. Returns false if the queue is full."""
        is_stream = "stream" in packet
        overtakes = packet["overtakes"] and not is_stream
        cap, cap_bytes = (CAP + RESERVE, CAP_BYTES + RESERVE_BYTES) if overtakes else (CAP, CAP_BYTES)
        if self._count >= cap or (self._count > 0 and self._bytes + len(data) > cap_bytes):
            return False
        queued = _Queued(packet, data)
        self._count += 1
        self._bytes += len(data)
        self._streams += is_stream
        if queued.is_reliable:
            self._backlog += len(data)
            self._pushed += 1
            lane = self._lanes["urgent" if overtakes and self._streams > 0 else "ordered"]
        else:
            lane = self._lanes["lossy"]
        lane.waiting.append(queued)
        if lane.sending is None and lane.task is None:
            lane.task = self._loop.create_task(self._run(lane))
        return True

    def begin_reports(self) -> None:
        """Begins to report to a new session, which assumes that nothing waits."""
        self._reported = (0, self._pushed)

    def take_backlog(self) -> int | None:
        """The bytes that wait on the reliable lane, if that has changed in a way that the core cannot know."""
        now = (self._backlog, self._pushed)
        if now == self._reported:
            return None
        self._reported = now
        return self._backlog

    def interrupt(self) -> list[int]:
        """Gives up all packets, and returns their keys."""
        self._generation += 1
        keys: list[int] = []
        for lane in self._lanes.values():
            if lane.sending is not None:
                keys.append(lane.sending.packet["packet"])
            keys.extend(queued.packet["packet"] for queued in lane.waiting)
            lane.sending = lane.task = None
            lane.waiting.clear()
        self._count = self._bytes = self._streams = self._backlog = 0
        self._wake()
        return keys

    def drop_streams(self) -> None:
        """Gives up the byte streams that wait: a goodbye would wait for them."""
        waiting = self._lanes["ordered"].waiting
        for queued in list(waiting):
            if "stream" in queued.packet:
                waiting.remove(queued)
                self._forget(queued)
        self._wake()

    async def flushed(self) -> None:
        """Returns when nothing is queued."""
        if self._count == 0:
            return
        idle: asyncio.Future[None] = self._loop.create_future()
        self._idle.append(idle)
        await idle

    async def _run(self, lane: _Lane) -> None:
        generation = self._generation
        while lane.waiting:
            queued = lane.sending = lane.waiting.popleft()
            failure = await self._send(queued, generation)
            if generation != self._generation:
                return  # all were given up meanwhile
            lane.sending = None
            self._forget(queued)
            if failure is not None:
                self._failed(queued.packet["packet"], failure)
            self._moved()
            if generation != self._generation:
                return
            self._wake()
        lane.task = None

    async def _send(self, queued: _Queued, generation: int) -> dict[str, Any] | None:
        packet, port = queued.packet, self._port
        if port.state == "connected" and not port.may_publish:
            return {"why": "not_allowed"}
        try:
            if "stream" not in packet:
                await port.publish(queued.bytes, queued.is_reliable, packet["topic"], packet["to"])
            elif self._is_wanted(packet["packet"]):
                await port.send_stream(
                    queued.bytes,
                    packet["stream"],
                    packet["to"],
                    lambda: generation == self._generation and self._is_wanted(packet["packet"]),
                )
        except Exception as error:
            return self._failure(error)
        return None

    def _failure(self, error: Exception) -> dict[str, Any]:
        state = self._port.state
        if state == "disconnected":
            return {"why": "closed"}
        if state == "reconnecting":
            return {"why": "interrupted"}
        return {"why": "other", "text": str(error) or type(error).__name__}

    def _forget(self, queued: _Queued) -> None:
        self._count -= 1
        self._bytes -= len(queued.bytes)
        self._streams -= "stream" in queued.packet
        if queued.is_reliable:
            self._backlog -= len(queued.bytes)

    def _wake(self) -> None:
        if self._count > 0:
            return
        for idle in self._idle:
            if not idle.done():
                idle.set_result(None)
        self._idle.clear()
