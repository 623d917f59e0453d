"""The errors of calls and of tools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class ToolError(Exception):
    """The failure of a tool, with a code and a text for the caller. Raise it in a tool: its text is sent.

    The text of any other exception stays in this process; the caller gets ``execution_error``.
    """

    def __init__(self, message: str, *, code: str = "execution_error", partial: object = None) -> None:
        super().__init__(message)
        #: Such as ``out_of_range``: at most 64 letters, digits and ``_ . -``. Not ``timeout``, ``cancelled`` or ``lost``, which
        #: say what became of the call itself.
        self.code = _checked_code(code)
        #: A partial result, which JSON can hold.
        self.partial = partial


#: The codes that say what became of a call: a tool's own would hide its text.
_OF_CALLS = ("timeout", "cancelled", "lost")


def _checked_code(code: object) -> str:
    if not isinstance(code, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", code):
        text = "it must be a text of 1 to 64 letters, digits and _ . -, such as 'not_found'"
        raise TypeError(f"the code of a ToolError is {code!r}; {text}")
    if code in _OF_CALLS:
        text = f"says what became of the call itself; use another one, such as 'printer_{code}'"
        raise ValueError(f"the code of a ToolError cannot be {code!r}, which {text}")
    return str(code)


class Invalid(Exception):
    """Arguments that do not match their schema. The text is for the caller."""


class CallError(Exception):
    """Why a call has no value. Each kind has a subclass."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        self.kind: str = error["kind"]
        #: The code that events and recordings show. Of a failed tool, the tool's own.
        self.code: str = error["code"]
        #: If false, nothing ran, and a retry is safe.
        self.may_have_run: bool = error["may_have_run"]

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (type(self), self.args, self.__dict__))


def _restore(kind: type[CallError], args: tuple[object, ...], fields: dict[str, Any]) -> CallError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class ToolFailed(CallError):
    """The tool failed, or its owner refused to run it, and reported why: see ``code``."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        #: The partial result of the tool, or the data of its error.
        self.partial: Any = error.get("partial")


class UnknownTool(CallError):
    """No participant offers the tool."""


class Ambiguous(CallError):
    """Several clients offer the tool, and the call names none of them."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        self.owners: list[str] = list(error.get("owners", ()))


class NotBound(CallError):
    """The clients are bound to another assistant, or to none because there are several."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        self.owners: list[str] = list(error.get("owners", ()))


class NotDelivered(CallError):
    """The request never left this process."""


class NotAllowed(CallError):
    """The local token does not allow sending data."""


class CallTimeout(CallError):
    """No result arrived within the limit."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        limit = error.get("limit")
        #: In seconds.
        self.limit: float | None = None if limit is None else limit / 1000


class Lost(CallError):
    """The owner left and did not return in time."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        self.owner: str | None = error.get("owner")


class Cancelled(CallError):
    """The call was cancelled by a barge-in, or by the client."""


class Detached(CallError):
    """The turn was interrupted and the call continues: see ``late_results``."""


class TurnOver(CallError):
    """The turn of this call is over."""


class TooManyEqual(CallError):
    """The turn has made the same call too often."""


class TooLarge(CallError):
    """The request is larger than the limit."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        #: In bytes.
        self.size: int | None = error.get("size")
        #: In bytes.
        self.max: int | None = error.get("max")


class TooManyOpen(CallError):
    """Too many calls to one client are open."""


class Busy(CallError):
    """The owner is overloaded."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error)
        self.owner: str | None = error.get("owner")


class InvalidLimit(CallError):
    """A limit of the call, such as its timeout, is not allowed."""


class InvalidArguments(CallError):
    """The arguments cannot be sent."""


class Closed(CallError):
    """This participant is not in the room, or has left it."""


_CLASSES: dict[str, type[CallError]] = {
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


def call_error(error: Mapping[str, Any]) -> CallError:
    """Returns the error of a call that the core describes."""
    # A core that is newer than this shell may have further kinds.
    return _CLASSES.get(error["kind"], CallError)(error)


def closed_error(message: str, may_have_run: bool) -> Closed:
    """Returns the error of a call for which there is no session."""
    return Closed({"kind": "closed", "code": "closed", "message": message, "may_have_run": may_have_run})


class Refused(Exception):
    """The core refuses a call."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        self.error = error


class JoinError(ConnectionError):
    """A room was not joined. The message says why, and what to do."""


class NotReady(Exception):
    """A client did not become ready."""

    def __init__(self, client: str, message: str) -> None:
        super().__init__(message)
        self.client = client
