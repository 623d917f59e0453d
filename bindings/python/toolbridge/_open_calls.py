"""The calls of this participant that have no outcome yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ._json import JsonObject
from ._session_runner import SessionRunner

if TYPE_CHECKING:
    from ._driver import OpenCall


class OpenCalls:
    def __init__(self, runner: SessionRunner) -> None:
        self._runner = runner
        self._calls: dict[int, OpenCall] = {}
        self._last = 0

    def begin(self, fields: Mapping[str, object], raw: Mapping[str, str], call: OpenCall) -> int:
        """Makes a call, and returns its name. ``raw`` has the fields that are JSON texts. Raises ``ValueError`` if they are
        malformed."""
        self._last += 1
        name = self._last
        if not self._runner.is_open:
            call.settled({"error": _CLOSED})
            return name
        self._runner.handle({"type": "call", "id": name, **fields}, raw)
        self._calls[name] = call  # before the outputs, which may settle it
        self._runner.drain()
        return name

    def settled(self, output: JsonObject) -> None:
        call = self._calls.pop(output["id"], None)
        if call is not None:
            call.settled(output)

    def progress(self, output: JsonObject) -> None:
        call = self._calls.get(output["id"])
        if call is not None:
            call.progress(output)

    def lose_all(self, message: str) -> None:
        """Ends all calls, because the session has ended."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.lost(message)


_CLOSED: JsonObject = {
    "kind": "closed",
    "code": "closed",
    "message": "this participant is not in the room",
    "mayHaveRun": False,
}
