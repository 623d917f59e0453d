"""The vocabulary of the core, with Python's names. Written by bindings/vocabulary; do not edit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Consent = Literal["never", "once_per_session", "always"]
Disclose = Literal["full", "name", "nothing"]
BargeIn = Literal["cancel", "finish", "report"]
ProgressStatus = Literal["pending", "in_progress", "completed", "failed"]
StopReason = Literal["caller", "barge_in", "deadline", "caller_gone", "leaving", "lost"]

#: The events of the core that are passed on.
CoreEvent = Literal[
    "joined",
    "left",
    "tools_changed",
    "bound",
    "ambiguous_assistant",
    "registered",
    "unaccepted",
    "not_admitted",
    "not_allowed",
    "connection",
    "requested",
    "delivered",
    "progress",
    "settled",
    "tool_failed",
    "peer_error",
    "violation",
    "view",
    "late_result",
    "consent_void",
]

#: What becomes of the keys of an object: the name of each that has another one in Python, the record that it holds, and whether
#: it is a time, which is in seconds in Python.
Fields = Mapping[str, tuple[str, str | None, bool]]

#: Of records that reach an application.
RECORDS: dict[str, Fields] = {
    "Participant": {
        "canUpdateMetadata": ("can_update_metadata", None, False),
        "canPublishData": ("can_publish_data", None, False),
        "mayStop": ("may_stop", None, False),
        "clientProtocol": ("client_protocol", None, False),
    },
    "Tool": {
        "inputSchema": ("input_schema", None, False),
        "shortTitle": ("short_title", None, False),
        "outputSchema": ("output_schema", None, False),
        "readOnly": ("read_only", None, False),
        "openWorld": ("open_world", None, False),
        "timeoutMs": ("timeout", None, True),
        "patienceMs": ("patience", None, True),
        "cancelGraceMs": ("cancel_grace", None, True),
        "preferClient": ("prefer_client", None, False),
        "bargeIn": ("barge_in", None, False),
    },
}

#: Of events.
EVENTS: dict[str, Fields] = {
    "joined": {
        "participant": ("participant", "Participant", False),
    },
    "settled": {
        "tookMs": ("took", None, True),
    },
    "late_result": {
        "tookMs": ("took", None, True),
    },
}

#: The times of a participant: the names of the core, by those in Python.
TIMES: dict[str, str] = {
    "call": "callMs", "longest_call": "longestCallMs", "owner_wait": "ownerWaitMs", "grace": "graceMs",
    "heartbeat": "heartbeatMs", "memory": "memoryMs", "hold": "holdMs", "silence": "silenceMs",
    "rpc_silence": "rpcSilenceMs", "announcement": "announcementMs", "stream_idle": "streamIdleMs", "stream": "streamMs",
    "claim": "claimMs", "denial": "denialMs",
}  # fmt: skip

#: The limits of a participant: the names of the core, by those in Python.
CAPS: dict[str, str] = {
    "equal_calls": "equalCalls", "open_per_peer": "openPerPeer", "open_calls": "openCalls", "open_bytes": "openBytes",
    "late_results": "lateResults", "late_bytes": "lateBytes", "call_log": "callLog", "max_packet": "maxPacket",
    "max_incoming": "maxIncoming", "max_frame": "maxFrame", "max_frame_of_others": "maxFrameOfOthers",
    "streams_per_peer": "streamsPerPeer", "stream_bytes": "streamBytes", "held_frames": "heldFrames",
    "held_bytes": "heldBytes", "held_frames_of_all": "heldFramesOfAll", "retransmit_frames": "retransmitFrames",
    "retransmit_bytes": "retransmitBytes", "id_bytes": "idBytes", "calls_per_second": "callsPerSecond",
    "rpc_bytes_per_second": "rpcBytesPerSecond", "progress_per_second": "progressPerSecond",
    "table_entries": "tableEntries", "table_bytes": "tableBytes", "remembered_peers": "rememberedPeers",
    "running_jobs": "runningJobs", "waiting_jobs": "waitingJobs", "progress_bytes": "progressBytes",
    "message_bytes": "messageBytes", "open_questions": "openQuestions", "open_prompts": "openPrompts", "count": "count",
    "description_bytes": "descriptionBytes", "schema_bytes": "schemaBytes", "registration_bytes": "registrationBytes",
}  # fmt: skip


class CallError(Exception):
    """Why a call has no value. Each kind has a subclass."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        #: The kind.
        self.kind: str = error["kind"]
        #: The code that events and recordings show. Of a failed tool, its own.
        self.code: str = error["code"]
        #: The text for a model, if it is another one: the tool's own words, or what happened and what to do, without names of participants.
        self.for_model: str | None = error.get("forModel")
        #: Whether the tool may have run. If not, a retry is safe.
        self.may_have_run: bool = error["mayHaveRun"]

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (type(self), self.args, self.__dict__))


def _restore(kind: type[CallError], args: tuple[object, ...], fields: dict[str, Any]) -> CallError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class ToolFailed(CallError):
    """The tool failed, or its owner refused to run it, and reported why."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        #: The partial result of a failed tool, or the data of its error.
        self.partial: Any = error.get("partial")
        #: The number of the error that a method of LiveKit's RPC raised, of `tool`.
        self.rpc_code: int | None = error.get("rpcCode")


class UnknownTool(CallError):
    """No participant offers the tool."""


class Ambiguous(CallError):
    """Several clients offer the tool, and the call names none of them."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        #: The participants that are meant, of `ambiguous` and `not_bound`.
        self.owners: list[str] = list(error.get("owners", ()))


class NotBound(CallError):
    """The clients are bound to another assistant, or to none because there are several."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        #: The participants that are meant, of `ambiguous` and `not_bound`.
        self.owners: list[str] = list(error.get("owners", ()))


class NotDelivered(CallError):
    """The request never left this process."""


class NotAllowed(CallError):
    """The local token does not allow sending data."""


class CallTimeout(CallError):
    """No result arrived within the limit."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        #: The time limit, in seconds, of `timeout` and `not_delivered`; of `limit`, the longest that is allowed.
        self.limit: float | None = error["limitMs"] / 1000 if "limitMs" in error else None


class Lost(CallError):
    """The owner left and did not return in time."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        #: The participant that was asked, of `lost` and `busy`.
        self.owner: str | None = error.get("owner")


class Cancelled(CallError):
    """The call was cancelled."""


class Detached(CallError):
    """The turn was interrupted and the call continues: its result is a late one."""


class TurnOver(CallError):
    """The turn of this call is over."""


class TooManyEqual(CallError):
    """The turn has made the same call too often."""


class TooLarge(CallError):
    """The request is larger than the limit."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        #: The size of the request, in bytes, of `too_large`.
        self.size: int | None = error.get("size")
        #: The largest size, in bytes, of `too_large`.
        self.max: int | None = error.get("max")


class TooManyOpen(CallError):
    """Too many calls to one client are open."""


class Busy(CallError):
    """The owner is overloaded."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        #: The participant that was asked, of `lost` and `busy`.
        self.owner: str | None = error.get("owner")


class InvalidLimit(CallError):
    """A limit of the call, such as its timeout, is not allowed."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        #: The time limit, in seconds, of `timeout` and `not_delivered`; of `limit`, the longest that is allowed.
        self.limit: float | None = error["limitMs"] / 1000 if "limitMs" in error else None


class InvalidArguments(CallError):
    """The arguments cannot be sent."""


class Closed(CallError):
    """This participant is not in the room, or has left it."""


#: The classes by kind. A core that is newer than this shell may have further kinds.
CALL_ERRORS: dict[str, type[CallError]] = {
    "tool": ToolFailed,
    "unknown_tool": UnknownTool,
    "ambiguous": Ambiguous,
    "not_bound": NotBound,
    "not_delivered": NotDelivered,
    "not_allowed": NotAllowed,
    "timeout": CallTimeout,
    "lost": Lost,
    "cancelled": Cancelled,
    "detached": Detached,
    "turn_over": TurnOver,
    "too_many_equal": TooManyEqual,
    "too_large": TooLarge,
    "too_many_open": TooManyOpen,
    "busy": Busy,
    "limit": InvalidLimit,
    "arguments": InvalidArguments,
    "closed": Closed,
}
