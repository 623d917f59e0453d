"""Runs a session of the core: passes inputs with their time, carries out the outputs in order, and keeps the timer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any, cast

from ._core import Session
from ._json import JsonObject, join_json, json_text, parse

#: What the message of an exception begins with if the core has panicked.
PANIC = "panic: "

#: A timer that fires so much later than it was due, in seconds, is counted: something has blocked the loop.
STALL = 1.0


class SessionRunner:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        output: Callable[[JsonObject], None],
        backlog: Callable[[], int | None],
        drained: Callable[[], None],
        warn: Callable[[str], None],
        count: Callable[[str], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        #: Carries out an output. It may pass inputs.
        self._output = output
        #: The bytes that wait to be sent, if the core cannot know them.
        self._backlog = backlog
        #: All outputs of an input are carried out.
        self._drained = drained
        #: An input that nobody waits for was malformed.
        self._warn = warn
        self._count = count
        #: The core has panicked, or an event of the SDK or a timer has caused an exception. The session is unusable.
        self._failed = failed
        self._session: Session | None = None
        #: The session's zero point, by the loop's clock.
        self._zero = 0.0
        self._is_draining = False
        self._timer: asyncio.TimerHandle | None = None
        #: When the session is due, in milliseconds since zero.
        self._due: float | None = None
        #: When the timer fires: when the session is due, or earlier. Most times are cancelled long before, and a timer that
        #: fires too early costs less than a new one for each packet.
        self._fires = 0.0

    @property
    def is_open(self) -> bool:
        """Whether there is a session."""
        return self._session is not None

    def begin(self, fields: Mapping[str, object]) -> None:
        """Begins a session now. Raises ``ValueError`` if the fields are malformed."""
        self._zero = self._loop.time()
        create = {"type": "create", "atMs": 0, **fields, "seed": os.urandom(32).hex()}
        self._session = Session.create(json_text(create))

    def left(self, time: float) -> float:
        """How long it is until a time of the core, in milliseconds."""
        return time - self._now()

    def feed(
        self, fields: Mapping[str, object], raw: Mapping[str, str] = {}, data: bytes | None = None
    ) -> JsonObject | None:
        """Passes an input of the room or of a tool, and carries out what follows. One that is malformed is reported."""
        reply = self.feed_only(fields, raw, data)
        self.drain()
        return reply

    def feed_text(self, text: str, data: bytes | None) -> None:
        """Passes an input that is well-formed JSON without its time, and carries out what follows."""
        session = self._session
        if session is not None:
            timed = f'{text[:-1]},"atMs":{self._now()}}}'
            self._guard(session.handle, timed, data)
            self.drain()

    def feed_only(
        self, fields: Mapping[str, object], raw: Mapping[str, str] = {}, data: bytes | None = None
    ) -> JsonObject | None:
        """Passes an input that nobody waits for, amid outputs. One that is malformed has no effect, and is reported."""
        try:
            return self.handle(fields, raw, data)
        except ValueError as error:
            self._warn(str(error))
            return None

    def handle(
        self, fields: Mapping[str, object], raw: Mapping[str, str] = {}, data: bytes | None = None
    ) -> JsonObject | None:
        """Passes an input, and leaves its outputs to the next ``drain``. Raises ``ValueError`` if it is malformed."""
        session = self._session
        if session is None:
            return None
        text = join_json({**fields, "atMs": self._now()}, raw)
        return _parse(self._guard(session.handle, text, data))

    def start(self, job: int) -> bool:
        """Reports that a function begins. Returns whether it may."""
        session = self._session
        may_start = session is not None and bool(self._guard(session.start, self._now(), job))
        self.drain()
        return may_start

    def sent(self, packet: int) -> None:
        """Reports that a packet was sent, and carries out what follows."""
        session = self._session
        if session is not None:
            self._guard(session.sent, self._now(), packet)
            self.drain()

    def query(self, fields: Mapping[str, object]) -> JsonObject | None:
        """Asks the session."""
        session = self._session
        if session is None:
            return None
        return _parse(self._guard(session.handle, json_text(fields)))

    def take_bytes(self) -> bytes | None:
        """The bytes of the output that is being carried out."""
        session = self._session
        return None if session is None else cast("bytes | None", self._guard(session.take_bytes))

    def drain(self) -> None:
        """Carries out all outputs, and sets the timer."""
        if self._is_draining:
            return
        self._is_draining = True
        try:
            self._carry_out()
        finally:
            self._is_draining = False
        self._set_timer()
        self._drained()

    def close(self, last: Mapping[str, object]) -> bool:
        """Ends the session by its last input. Returns whether there was one, and it did not panic."""
        session = self._session
        if session is None:
            return False
        self.feed_only(last)
        self._carry_out()  # also if this is called amid other outputs
        if self._session is not session:
            return False
        self.forget()
        session.free()
        return True

    def forget(self) -> None:
        """Drops the session as it is."""
        self._session = None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._due = None

    def safely(self, run: Callable[[], None]) -> None:
        """Runs what an event of the SDK or a timer causes: it must not raise there."""
        try:
            run()
        except Exception as error:
            self._failed(error)

    def _carry_out(self) -> None:
        # A flood of packets does not delay timers.
        if self._due is not None and self._due <= self._now():
            self._timed_out()
        while (text := self._next() or self._next_after_backlog()) is not None:
            self._output(parse(text))

    def _next_after_backlog(self) -> str | None:
        """Reports the bytes that wait to be sent, and returns the output that follows."""
        size = self._backlog()
        if size is None:
            return None
        self.feed_only({"type": "backlog", "size": size})
        return self._next()

    def _next(self) -> str | None:
        session = self._session
        return None if session is None else cast("str | None", self._guard(session.next_output))

    def _set_timer(self) -> None:
        session = self._session
        due = self._due = None if session is None else self._guard(session.next_deadline)
        if due is None:
            return
        if self._timer is not None:
            if self._fires <= due:
                return
            self._timer.cancel()
        self._fires = due
        self._timer = self._loop.call_at(self._zero + due / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._due is not None:
            self.safely(self.drain)

    def _timed_out(self) -> None:
        late, self._due = self._now() - (self._due or 0), None
        if late > STALL * 1000:
            self._count("blocked_loop")
        self.feed_only({"type": "timeout"})

    def _now(self) -> float:
        return round((self._loop.time() - self._zero) * 1000, 3)

    def _guard(self, run: Callable[..., Any], *arguments: object) -> Any:
        """Runs a function of the core. A panic makes the session unusable."""
        try:
            return run(*arguments)
        except RuntimeError as error:
            if not str(error).startswith(PANIC):
                raise
            self._failed(error)
            return None


def _parse(text: str | None) -> JsonObject | None:
    return None if text is None else parse(text)
