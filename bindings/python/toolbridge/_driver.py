"""What the public classes need of a participant in a room, whatever drives it. Only for the type checker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ._events import Event
from ._json import JsonObject
from ._tool import NamedTool


class OpenCall(Protocol):
    """What becomes of a call."""

    @property
    def wants_progress(self) -> bool:
        """Whether ``progress`` does anything."""
        ...

    def settled(self, result: JsonObject) -> None: ...
    def progress(self, event: Event) -> None: ...
    def lost(self, message: str) -> None: ...


class Driver(Protocol):
    """Drives one participant: its sessions of the core, one after the other.

    Inputs, replies and queries are those of ``bindings/README.md``. All methods are called on the loop of the participant, which
    gets events from the ``Emitter`` that the driver was created with.
    """

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        ...

    @property
    def counters(self) -> Mapping[str, int]:
        """What the shell counts, besides the core."""
        ...

    def offer(self, tools: Mapping[str, NamedTool]) -> None:
        """Replaces the tools."""
        ...

    def require_session(self) -> None:
        """Raises ``RuntimeError`` if the room is not connected."""
        ...

    def call(self, fields: Mapping[str, Any], raw: Mapping[str, str], call: OpenCall) -> int:
        """Makes a call, and returns its name. ``raw`` has the fields that are JSON texts."""
        ...

    def input(self, fields: Mapping[str, Any], raw: Mapping[str, str] = {}) -> JsonObject | None:
        """Passes an input of the author. Returns its reply, if it has one and there is a session. Raises ``ValueError`` if it
        is malformed."""
        ...

    def query(self, fields: Mapping[str, Any]) -> JsonObject | None:
        """Asks the session, if there is one."""
        ...

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls a function after each change of the session, until the returned function is called."""
        ...

    async def stop(self) -> None:
        """Says goodbye and leaves the room to others. Returns when the last packets are sent, or after a second."""
        ...
