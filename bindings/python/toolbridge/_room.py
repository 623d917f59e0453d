"""What toolbridge uses of ``livekit.rtc.Room``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from ._record import Record

if TYPE_CHECKING:
    from ._join import JoinedQueue
    from ._sender import Sender
    from ._types import PortEvents, RoomState

Participant = dict[str, Any]

#: The oldest version of the package ``livekit`` that is supported.
OLDEST_LIVEKIT = "1.1.21"

#: The topic of the byte streams that carry large frames.
STREAM_TOPIC = "toolbridge.frame"

#: The numbers of the SDK's ``ConnectionState``.
_STATES: dict[int, RoomState] = {1: "connected", 2: "reconnecting"}

#: The number of the SDK's reliable kind of packets.
_RELIABLE = 1

#: The bytes that end-to-end encryption adds to a packet, with its envelope.
ENCRYPTION_OVERHEAD = 44

#: The part of a stream that is passed to the SDK at once, in bytes.
_STREAM_PART = 150_000

#: How long the reason of a disconnection is waited for, in seconds. The SDK has none if the application disconnects.
_REASON_WAIT = 0.1


class ReceivedStream(Record):
    """A byte stream that begins to arrive."""

    sender: str
    id: str
    topic: str
    length: int | None
    attributes: Mapping[str, str]
    #: Ends when the stream is complete, and raises if it was cut off.
    chunks: AsyncIterator[bytes]
    #: Ends the reading early.
    close: Callable[[], None]


class Port:
    """A room as a driver uses it."""

    room: Any
    #: What the core's ``config`` has in such a room.
    config: Mapping[str, object] = {}

    @property
    def state(self) -> RoomState:
        raise NotImplementedError

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def overhead(self) -> int:
        """The bytes by which the room makes each packet larger."""
        return 0

    def local(self) -> Participant:
        raise NotImplementedError

    @property
    def is_hidden(self) -> bool:
        """Whether the token hides the local participant from the others."""
        return False

    def participants(self) -> list[Participant]:
        raise NotImplementedError

    def participant(self, identity: str) -> Participant | None:
        raise NotImplementedError

    def peer(self, identity: str) -> dict[str, str]:
        found = self.participant(identity)
        return {"identity": identity} if found is None else {"identity": identity, "sid": found["sid"]}

    def listen(self, events: PortEvents, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """Reports events until the returned function is called."""
        raise NotImplementedError

    def sender(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        is_wanted: Callable[[int], bool],
        sent: Callable[[int], None],
        failed: Callable[[int, Mapping[str, Any]], None],
    ) -> Sender | JoinedQueue:
        """Makes what sends packets: see ``Sender``."""
        raise NotImplementedError

    def check_process(self) -> None:
        """Raises ``RuntimeError`` if the room belongs to another process."""


def port_of(room: object) -> Port:
    return room if isinstance(room, Port) else RoomPort(room)


class RoomPort(Port):
    """A room of the SDK."""

    def __init__(self, room: Any) -> None:
        check(room)
        self.room = room

    @property
    def state(self) -> RoomState:
        return _STATES.get(self.room.connection_state, "disconnected")

    @property
    def name(self) -> str:
        return str(self.room.name)

    @property
    def overhead(self) -> int:
        manager = getattr(self.room, "_e2ee_manager", None)  # the property fails before the room is connected
        return ENCRYPTION_OVERHEAD if manager is not None and manager.enabled else 0

    def local(self) -> Participant:
        return _describe(self.room.local_participant)

    @property
    def may_publish(self) -> bool:
        """Whether the local token permits data. The SDK sends without it, too, and the server drops the packets."""
        permission = _permission(self.room.local_participant)
        return permission is None or bool(permission.can_publish_data)

    @property
    def is_hidden(self) -> bool:
        permission = _permission(self.room.local_participant)
        return permission is not None and bool(permission.hidden)

    def participants(self) -> list[Participant]:
        return [_describe(who) for who in self.room.remote_participants.values()]

    def participant(self, identity: str) -> Participant | None:
        found = self.room.remote_participants.get(identity)
        return None if found is None else _describe(found)

    def peer(self, identity: str) -> dict[str, str]:
        found = self.room.remote_participants.get(identity)
        return {"identity": identity} if found is None else {"identity": identity, "sid": found.sid}

    async def publish(self, data: bytes, is_reliable: bool, topic: str, to: list[str]) -> None:
        await self.room.local_participant.publish_data(
            data, reliable=is_reliable, destination_identities=to, topic=topic
        )

    async def send_stream(
        self, data: bytes, header: Mapping[str, Any], to: list[str], is_wanted: Callable[[], bool]
    ) -> None:
        writer = await self.room.local_participant.stream_bytes(
            "frame",
            total_size=header["length"],
            attributes=dict(header["attributes"]),
            stream_id=header["id"],
            destination_identities=to,
            topic=header["topic"],
        )
        for at in range(0, len(data), _STREAM_PART):
            if not is_wanted():
                break
            await writer.write(data[at : at + _STREAM_PART])
        await writer.aclose()

    def sender(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        is_wanted: Callable[[int], bool],
        sent: Callable[[int], None],
        failed: Callable[[int, Mapping[str, Any]], None],
    ) -> Sender:
        from ._sender import Sender

        return Sender(self, loop, is_wanted=is_wanted, sent=sent, failed=failed)

    def listen(self, events: PortEvents, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        room, waiting = self.room, _Waiting(loop, events)

        def state_changed(state: int) -> None:
            if state == 1:
                waiting.end_now()
                events.connected()
            elif state == 0:
                waiting.begin()

        def changed(who: Any) -> None:
            events.changed(who.identity)

        def changed_second(_: object, who: Any) -> None:
            events.changed(who.identity)

        def data_received(packet: Any) -> None:
            sender = None if packet.participant is None else packet.participant.identity
            events.packet(sender, packet.kind == _RELIABLE, packet.topic or "", packet.data)

        def stream_opened(reader: Any, identity: str) -> None:
            info = reader.info
            events.stream(
                ReceivedStream(
                    identity, info.stream_id, info.topic, info.size or None, info.attributes or {}, reader, reader.close
                )
            )

        listeners: dict[str, Callable[..., None]] = {
            "connection_state_changed": state_changed,
            "reconnecting": events.reconnecting,
            "reconnected": events.reconnected,
            "disconnected": waiting.end,
            "participant_connected": changed,
            "participant_disconnected": changed,
            "participant_attributes_changed": changed_second,
            "participant_metadata_changed": changed,
            "participant_permissions_changed": changed,
            "data_received": data_received,
        }
        disconnect = room.disconnect

        # The SDK has no event before it disconnects, and a job of livekit-agents offers no other place for a goodbye.
        async def leave(*args: Any, **options: Any) -> None:
            await events.leaving()
            try:
                await disconnect(*args, **options)
            finally:
                waiting.end_now()
                events.left()

        # First, because it raises if the topic is taken.
        room.register_byte_stream_handler(STREAM_TOPIC, stream_opened)
        for event, listener in listeners.items():
            room.on(event, listener)
        room.disconnect = leave

        def stop() -> None:
            if vars(room).get("disconnect") is leave:
                del room.disconnect
            waiting.cancel()
            room.unregister_byte_stream_handler(STREAM_TOPIC)
            for event, listener in listeners.items():
                room.off(event, listener)

        return stop


class _Waiting:
    """Waits for the reason of a disconnection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, events: PortEvents) -> None:
        self._loop = loop
        self._events = events
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(_REASON_WAIT, self.end, 1)

    def end(self, reason: int) -> None:
        self.cancel()
        self._events.disconnected(close_reason(reason))

    def end_now(self) -> None:
        """Ends the waiting, if there is any: the room may be connected again."""
        if self._timer is not None:
            self.end(1)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def check(room: object) -> None:
    """Raises ``TypeError`` if this is no room, and ``ImportError`` if the SDK is missing or too old."""
    if isinstance(room, Port):
        return
    try:
        from livekit import rtc
    except ImportError as error:
        raise ImportError(f"toolbridge needs the package livekit {OLDEST_LIVEKIT} or later") from error
    found = rtc.__version__
    if _numbers(found) < _numbers(OLDEST_LIVEKIT):
        raise ImportError(f"livekit {found} is too old; toolbridge needs {OLDEST_LIVEKIT} or later")
    if not isinstance(room, rtc.Room):
        raise TypeError(f"the room must be a livekit.rtc.Room, not {type(room).__name__}")


def room_loop(room: object) -> asyncio.AbstractEventLoop | None:
    """The loop that the room was created for. The SDK keeps it in a field that is not public."""
    loop = getattr(room, "_loop", None)
    return loop if isinstance(loop, asyncio.AbstractEventLoop) else None


def _numbers(version: str) -> list[int]:
    numbers = []
    for part in version.split(".")[:3]:
        digits = "".join(digit for digit in part if digit.isdigit())
        numbers.append(int(digits or 0))
    return numbers


def _describe(who: Any) -> Participant:
    # Without permissions that the server has sent, attributes are not trusted.
    permission = _permission(who)
    return {
        "identity": who.identity,
        "sid": who.sid,
        "kind": _kind(who.kind),
        "attributes": dict(who.attributes),
        "canUpdateMetadata": permission is None or bool(permission.can_update_metadata),
        "canPublishData": permission is None or bool(permission.can_publish_data),
    }


def _permission(who: Any) -> Any:
    """The permissions that the server has sent, or ``None``. The property `permissions` cannot tell."""
    info = getattr(who, "_info", None)
    return info.permission if info is not None and info.HasField("permission") else None


def _kind(kind: int) -> str:
    """The kinds of LiveKit's ``ParticipantKind``, by their numbers."""
    return {0: "standard", 4: "agent"}.get(kind, "other")


_REASONS: dict[int, dict[str, str]] = {
    0: {"kind": "connection_lost", "text": "the SDK gave no reason"},
    1: {"kind": "closed"},
    2: {"kind": "duplicate_identity"},
    3: {"kind": "server_shutdown"},
    4: {"kind": "removed"},
    5: {"kind": "room_deleted"},
    6: {"kind": "server", "text": "the state of the connection does not match the server’s"},
    7: {"kind": "refused", "text": "the join failed"},
    9: {"kind": "connection_lost", "text": "the signaling connection was closed"},
    10: {"kind": "room_closed"},
    14: {"kind": "connection_lost", "text": "the connection timed out"},
    15: {"kind": "connection_lost", "text": "the peer connection failed"},
}


def close_reason(reason: int) -> dict[str, str]:
    """The reasons of LiveKit's ``DisconnectReason``, by their numbers."""
    found = _REASONS.get(reason)
    return found or {"kind": "server", "text": f"the server ended the connection (reason {reason})"}
