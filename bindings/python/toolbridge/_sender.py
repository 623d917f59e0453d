"""Publishes the packets that the core sends: it says which ones, and when each may leave."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._room import RoomPort


class Sender:
    """Packets of one lane are published one after the other. Byte streams delay no packets."""

    def __init__(
        self,
        port: RoomPort,
        loop: asyncio.AbstractEventLoop,
        *,
        is_wanted: Callable[[int], bool],
        sent: Callable[[int], None],
        failed: Callable[[int, Mapping[str, Any]], None],
    ) -> None:
        self._port = port
        self._loop = loop
        #: Whether the core still wants the rest of this byte stream to be sent.
        self._is_wanted = is_wanted
        #: Called for a packet that was sent, and for one that was not.
        self._sent = sent
        self._failed = failed
        # Grows when all packets are given up. Those that wait are not published, and the end of one that the SDK still sends is
        # ignored.
        self._generation = 0
        self._lanes: dict[str, deque[tuple[dict[str, Any], bytes]]] = {}
        self._idle: list[asyncio.Future[None]] = []

    def send(self, packet: dict[str, Any], data: bytes) -> bool:
        """Publishes a packet. Always returns true: the core has no more packets than it can hold."""
        name = "stream" if "stream" in packet else packet["lane"]
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = deque()
            self._loop.create_task(self._run(name, lane, self._generation))
        lane.append((packet, data))
        return True

    def begin_reports(self) -> None:
        """Nothing is reported: the core knows what waits, and gives up what it need not send."""

    def take_backlog(self) -> None: ...

    def drop_streams(self) -> None: ...

    def interrupt(self) -> list[int]:
        """Gives up all packets. The core knows which ones."""
        self._generation += 1
        self._lanes.clear()
        self._wake()
        return []

    async def flushed(self) -> None:
        """Returns when nothing waits."""
        if self._lanes:
            idle: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(idle)
            await idle

    async def _run(self, name: str, lane: deque[tuple[dict[str, Any], bytes]], generation: int) -> None:
        while lane and generation == self._generation:
            packet, data = lane.popleft()
            failure = await self._publish(packet, data, generation)
            if generation != self._generation:
                return  # all were given up meanwhile
            if failure is None:
                self._sent(packet["packet"])
            else:
                self._failed(packet["packet"], failure)
        if generation == self._generation:
            del self._lanes[name]
            self._wake()

    async def _publish(self, packet: dict[str, Any], data: bytes, generation: int) -> dict[str, Any] | None:
        """Returns why the packet was not sent."""
        port, key = self._port, packet["packet"]
        if port.state == "connected" and not port.may_publish:
            return {"why": "not_allowed"}
        try:
            if "stream" not in packet:
                await port.publish(data, packet["lane"] == "reliable", packet["topic"], packet["to"])
            else:
                is_wanted = lambda: generation == self._generation and self._is_wanted(key)  # noqa: E731
                await port.send_stream(data, packet["stream"], packet["to"], is_wanted)
        except Exception as error:
            reasons = {"disconnected": "closed", "reconnecting": "interrupted"}
            if port.state in reasons:
                return {"why": reasons[port.state]}
            return {"why": "other", "text": str(error) or type(error).__name__}
        return None

    def _wake(self) -> None:
        if self._lanes:
            return
        for idle in self._idle:
            if not idle.done():
                idle.set_result(None)
        self._idle.clear()
