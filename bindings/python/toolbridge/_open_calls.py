"""The calls of this participant that have no outcome yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ._errors import Refused
from ._events import Event
from ._json import JsonObject
from ._session_runner import SessionRunner

if TYPE_CHECKING:
    from ._driver import OpenCall


class OpenCalls:
    def __init__(self, runner: SessionRunner) -> None:
        self._runner = runner
        self._calls: dict[int, OpenCall] = {}

    def begin(self, fields: Mapping[str, object], raw: Mapping[str, str], call: OpenCall) -> int:
        """Makes a call, and returns its key. ``raw`` has the fields that are JSON texts. Raises ``Refused``."""
        reply = self._runner.handle({"type": "call", **fields}, raw)
        if reply is not None and reply["type"] == "called":
            key = int(reply["key"])
            self._calls[key] = call  # before the outputs, which may settle it
            self._runner.drain()
            return key
        self._runner.drain()
        raise Refused(_CLOSED if reply is None else reply["error"])

    def settled(self, output: JsonObject) -> None:
        call = self._calls.pop(output["key"], None)
        if call is not None:
            call.settled(output)

    def progress(self, event: Event) -> None:
        call = self._calls.get(event["key"]) if "key" in event else None
        if call is not None:
            call.progress(event)

    def lose_all(self, message: str) -> None:
        """Ends all calls, because the session has ended."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.lost(message)


_CLOSED: JsonObject = {
    "kind": "closed",
    "code": "closed",
    "message": "this participant is not in the room",
    "may_have_run": False,
}
