"""A room in memory: LiveKit's own ``Room``, whose events are made here and not by its native library.

Packets arrive in a later step of the loop, in order. A test can drop them, change permissions, and move a participant to another
join. ``Room._on_room_event`` is the SDK's: it keeps the participants and emits the events.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import toolbridge
from livekit import rtc
from livekit.rtc._proto import participant_pb2, room_pb2

#: The longest time of a test, in seconds.
LIMIT = 240

#: The size of the chunks in which streams arrive, in bytes.
CHUNK = 15_000


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an asynchronous test."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), LIMIT))

    return run


class Memory:
    """The room that its participants share."""

    def __init__(self) -> None:
        self.rooms: dict[str, FakeRoom] = {}
        self.joins = 0
        #: Returns false for a packet that is lost.
        self.passes: Callable[[dict[str, Any]], bool] = lambda packet: True
        self.sent: list[dict[str, Any]] = []
        #: The participants that do not learn of others that join, until `introduce`.
        self.uninformed: set[str] = set()
        self._missed: list[tuple[FakeRoom, room_pb2.RoomEvent]] = []

    def introduce(self) -> None:
        self.uninformed.clear()
        for room, event in self._missed:
            room.post(event)

    def announce(self, who: FakeRoom, event: room_pb2.RoomEvent) -> None:
        for room in self.rooms.values():
            if room.info.identity in self.uninformed:
                self._missed.append((room, event))
            elif room is not who:
                room.post(event)

    def deliver(self, sender: FakeRoom, packet: dict[str, Any], to: list[str]) -> None:
        if sender.connection_state != rtc.ConnectionState.CONN_CONNECTED:
            raise RuntimeError("not connected")
        if not sender.info.permission.can_publish_data:
            return  # as the server does it; the SDK does not tell
        packet = {"from": sender.info.identity, "to": to, **packet}
        self.sent.append(packet)
        if not self.passes(packet):
            return
        for identity in to or [it for it in self.rooms if it != sender.info.identity]:
            room = self.rooms.get(identity)
            if room is not None:
                room.arrive(packet)


class FakeRoom(rtc.Room):
    def __init__(self, memory: Memory, identity: str, role: str | None, *, kind: int = 0, permission: bool = True) -> None:
        super().__init__()
        self.memory = memory
        self.info = participant_pb2.ParticipantInfo(identity=identity, kind=kind)  # type: ignore[arg-type]
        if role is not None:
            self.info.attributes["toolbridge.role"] = role
        if permission:
            self.info.permission.can_publish_data = True
            self.info.permission.can_update_metadata = False

    async def connect(self, *_: object) -> None:
        self._join()
        self._connection_state = rtc.ConnectionState.CONN_CONNECTED
        self._info.name = "room"
        self._remote_participants.clear()
        self._local_participant = FakeLocal(self)
        for room in self.memory.rooms.values():
            self._create_remote_participant(room.owned())
        self.memory.rooms[self.info.identity] = self
        self._announce()
        self._state(rtc.ConnectionState.CONN_CONNECTED)

    async def disconnect(self, **_: object) -> None:
        """As the application does it: the SDK gives no reason then."""
        self._leave()
        self._state(rtc.ConnectionState.CONN_DISCONNECTED)
        await asyncio.sleep(0)

    def end(self, reason: int) -> None:
        """As the server does it."""
        self._leave()
        self._state(rtc.ConnectionState.CONN_DISCONNECTED)
        self.post(room_pb2.RoomEvent(disconnected=room_pb2.Disconnected(reason=reason)))  # type: ignore[arg-type]

    def lose(self) -> None:
        """The connection is lost. Nothing is sent or received until it is back."""
        self._state(rtc.ConnectionState.CONN_RECONNECTING)
        self.post(room_pb2.RoomEvent(reconnecting=room_pb2.Reconnecting()))

    def restore(self, *, rejoins: bool = False) -> None:
        """The connection is back, under another sid if it rejoins. The SDK tells of that later, and without an event."""
        if rejoins:
            self._gone()
            self._join()
            self._announce()
        self._state(rtc.ConnectionState.CONN_CONNECTED)
        self.post(room_pb2.RoomEvent(reconnected=room_pb2.Reconnected()))
        if rejoins:
            info = participant_pb2.ParticipantInfo()
            info.CopyFrom(self.info)
            self.post(room_pb2.RoomEvent(participants_updated=room_pb2.ParticipantsUpdated(participants=[info])))

    def set_role(self, role: str) -> None:
        self.info.attributes["toolbridge.role"] = role
        entry = room_pb2.AttributesEntry(key="toolbridge.role", value=role)
        changed = room_pb2.ParticipantAttributesChanged(
            participant_identity=self.info.identity, attributes=[entry], changed_attributes=[entry]
        )
        self.memory.announce(self, room_pb2.RoomEvent(participant_attributes_changed=changed))

    def permit(self, **permissions: bool) -> None:
        for name, value in permissions.items():
            setattr(self.info.permission, name, value)
        changed = room_pb2.ParticipantPermissionChanged(
            participant_identity=self.info.identity, permission=self.info.permission
        )
        event = room_pb2.RoomEvent(participant_permission_changed=changed)
        self.memory.announce(self, event)
        self.post(event)

    def post(self, event: room_pb2.RoomEvent) -> None:
        """The SDK handles an event in a later step of the loop."""
        asyncio.get_running_loop().call_soon(self._on_room_event, event)

    def owned(self) -> participant_pb2.OwnedParticipant:
        owned = participant_pb2.OwnedParticipant()
        owned.info.CopyFrom(self.info)
        owned.handle.id = 0  # which the SDK never gives back
        return owned

    def arrive(self, packet: dict[str, Any]) -> None:
        if packet["kind"] == "stream":
            asyncio.get_running_loop().call_soon(self._open, packet)
            return
        event = room_pb2.RoomEvent()
        received = event.data_packet_received
        received.participant_identity = packet["from"]
        received.kind = 1 if packet["reliable"] else 0  # type: ignore[assignment]
        received.user.topic = packet["topic"]
        received.user.data.handle.id = 0
        buffer = ctypes.create_string_buffer(packet["bytes"], len(packet["bytes"]))
        received.user.data.data.data_ptr = ctypes.addressof(buffer)
        received.user.data.data.data_len = len(packet["bytes"])
        asyncio.get_running_loop().call_soon(lambda buffer: self._arrive(event), buffer)

    def _arrive(self, event: room_pb2.RoomEvent) -> None:
        if self.connection_state == rtc.ConnectionState.CONN_CONNECTED:
            self._on_room_event(event)

    def _open(self, packet: dict[str, Any]) -> None:
        handler = self._byte_stream_handlers.get(packet["topic"])
        if handler is not None and self.connection_state == rtc.ConnectionState.CONN_CONNECTED:
            handler(FakeReader(packet), packet["from"])  # type: ignore[arg-type]

    def _join(self) -> None:
        self.memory.joins += 1
        self.info.sid = f"PA_{self.memory.joins}"

    def _announce(self) -> None:
        event = room_pb2.RoomEvent()
        event.participant_connected.info.CopyFrom(self.owned())
        self.memory.announce(self, event)

    def _gone(self) -> None:
        gone = room_pb2.ParticipantDisconnected(participant_identity=self.info.identity)
        self.memory.announce(self, room_pb2.RoomEvent(participant_disconnected=gone))

    def _leave(self) -> None:
        self.memory.rooms.pop(self.info.identity, None)
        self._gone()

    def _state(self, state: int) -> None:
        self._connection_state = state  # type: ignore[assignment]
        changed = room_pb2.ConnectionStateChanged(state=state)  # type: ignore[arg-type]
        self.post(room_pb2.RoomEvent(connection_state_changed=changed))


class FakeLocal(rtc.LocalParticipant):
    def __init__(self, room: FakeRoom) -> None:
        super().__init__(room._room_queue, room.owned())
        self._room = room

    async def publish_data(  # type: ignore[override]
        self, payload: bytes, *, reliable: bool, destination_identities: list[str], topic: str
    ) -> None:
        packet = {"kind": "packet", "bytes": payload, "reliable": reliable, "topic": topic}
        self._room.memory.deliver(self._room, packet, destination_identities)

    async def stream_bytes(self, name: str, *, destination_identities: Any = None, **header: Any) -> Any:
        parts: list[bytes] = []

        async def write(data: bytes) -> None:
            parts.append(data)

        async def aclose() -> None:
            packet = {"kind": "stream", "bytes": b"".join(parts), **header}
            self._room.memory.deliver(self._room, packet, destination_identities)

        return SimpleNamespace(write=write, aclose=aclose)


class FakeReader:
    """A stream that arrives. It may be cut off, or never end. Its trailer may have attributes."""

    def __init__(self, packet: dict[str, Any], *, ends: bool = True) -> None:
        self.info = SimpleNamespace(
            stream_id=packet["stream_id"],
            topic=packet["topic"],
            size=packet["total_size"],
            attributes=dict(packet["attributes"]),
        )
        self._bytes = packet["bytes"]
        self._is_cut = packet.get("is_cut", False)
        self._trailer = packet.get("trailer", {})
        self._ends = ends
        self.read = 0
        self.closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        return self.closed.is_set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self._bytes), CHUNK):
            self.read += 1
            yield self._bytes[at : at + CHUNK]
        if not self._ends:
            await asyncio.Event().wait()
        self.info.attributes.update(self._trailer)  # as the SDK does
        if self._is_cut:
            raise RuntimeError("cut off")

    def close(self) -> None:
        self.closed.set()


class Ends:
    """A room with a client and an assistant whose tokens have roles."""

    def __init__(
        self,
        tools: Any = (),
        *,
        client: dict[str, Any] = {},
        assistant: dict[str, Any] = {},
        client_role: str | None = "client",
        assistant_role: str | None = "assistant",
        assistant_kind: int = 4,
        assistant_permission: bool = True,
    ) -> None:
        self.memory = Memory()
        self.phone = FakeRoom(self.memory, "phone", client_role)
        self.agent = FakeRoom(
            self.memory, "agent", assistant_role, kind=assistant_kind, permission=assistant_permission
        )
        self.app = toolbridge.Client(self.phone, tools, **client)
        self.bot = toolbridge.Assistant(self.agent, **assistant)

    async def connect(self) -> None:
        await self.phone.connect()
        await self.agent.connect()

    async def __aenter__(self) -> Ends:
        await self.connect()
        await self.bot.ready("phone")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self.app.aclose()
        await self.bot.aclose()


async def next_event(participant: Any, name: Any, matches: Callable[[Any], bool] = lambda event: True) -> Any:
    """Returns the next such event."""
    found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def check(event: Any) -> None:
        if not found.done() and matches(event):
            found.set_result(event)

    stop = participant.on(name, check)
    try:
        return await found
    finally:
        stop()
