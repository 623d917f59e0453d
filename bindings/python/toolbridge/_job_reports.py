"""Passes to the core what becomes of the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._json import join_json, present

if TYPE_CHECKING:
    from ._executor import Failure
    from ._session_runner import SessionRunner
    from ._types import ProgressStatus


class JobReports:
    def __init__(self, runner: SessionRunner) -> None:
        self._runner = runner

    def job_started(self, key: int) -> None:
        self._runner.feed({"type": "progress", "key": key})

    def progress(self, key: int, status: ProgressStatus, message: str | None, content: str | None) -> None:
        fields = {"type": "progress", "key": key, "status": status, **present(message=message)}
        self._runner.feed(fields, {} if content is None else {"content": content})

    def settle(self, key: int, value: str | None, failure: Failure | None, partial: str | None = None) -> None:
        fields = {"type": "settle", "key": key}
        if failure is not None:
            error = join_json(failure, {} if partial is None else {"partial": partial})
            self._runner.feed(fields, {"error": error})
        else:
            self._runner.feed(fields, {"value": value or "null"})
