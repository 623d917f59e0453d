"""Reports the room to the core: the local joins, whether they are connected, and the participants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from ._executor import describe
from ._record import Record
from ._names import participant
from ._room import Participant, Port
from ._session_runner import SessionRunner

if TYPE_CHECKING:
    from ._types import Rule

#: When the local participant is looked at again after a reconnection, in seconds: the SDK tells of another sid later, and without an
#: event.
RECHECKS = (0.02, 0.1, 0.5)


class Rules(Record):
    """The author's rules."""

    admit: Rule | None = None
    may_stop: Rule | None = None


class RoomView:
    def __init__(
        self,
        port: Port,
        loop: asyncio.AbstractEventLoop,
        runner: SessionRunner,
        rules: Rules,
        *,
        interrupt: Callable[[], list[int]],
        restored: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        self._port = port
        self._loop = loop
        self._runner = runner
        self._rules = rules
        #: Gives up the packets that wait to be sent, and returns their keys.
        self._interrupt = interrupt
        #: Called when the connection is back: what has arrived meanwhile can be read.
        self._restored = restored
        self._warn = warn
        #: The local sid that the session has.
        self._sid = ""
        self._is_reconnecting = False
        #: What the core knows of the participants.
        self._reported: dict[str, Participant] = {}
        self._changed: set[str] = set()
        self._is_flush_scheduled = False

    @property
    def is_reconnecting(self) -> bool:
        return self._is_reconnecting

    @property
    def is_behind(self) -> bool:
        """Whether the room has joined again, and the session does not know yet."""
        return self._is_reconnecting and self._port.local()["sid"] != self._sid

    def begin(self, local: Participant) -> None:
        """Forgets what an earlier session knew. The new one is created with this local participant."""
        self._sid = local["sid"]
        self._is_reconnecting = False
        self._changed.clear()
        self._reported = {local["identity"]: local}

    def end(self) -> None:
        """Forgets the participants: the session has ended."""
        self._reported = {}

    def report_all(self) -> None:
        """Reports the other participants to a new session."""
        for who in self._port.participants():
            self.report(who["identity"])

    def report(self, identity: str) -> None:
        """Reports what the core does not know of a participant yet."""
        local = self._port.local()
        is_local = identity == local["identity"]
        now = local if is_local else self._port.participant(identity)
        was = self._reported.get(identity)
        if was is not None and not is_local and (now is None or now["sid"] != was["sid"]):
            del self._reported[identity]
            was_peer = {"identity": identity, "sid": was["sid"]}
            was = None
            self._runner.feed({"type": "participant_left", "peer": was_peer})
        if now is None or now == was:
            return
        # For the local participant this input also says that it is announced. The SDK does not tell that, and the core assumes
        # it after a while; but a server that changes a participant has announced it.
        self._reported[identity] = now
        self._runner.feed({"type": "participant_joined", "participant": now if is_local else self._judge(now)})

    def touch(self, identity: str) -> None:
        """Notes that a participant has changed. It is read after the SDK has finished: it emits events amid its changes."""
        self._changed.add(identity)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush_later)

    def flush(self) -> None:
        """Reports the changes so far."""
        # While the room reconnects, the SDK forgets the participants and learns them again.
        if not self._runner.is_open or self._is_reconnecting or self._port.state != "connected":
            return
        if self._port.local()["sid"] != self._sid:
            return self._rejoined()
        changed, self._changed = self._changed, set()
        for identity in changed:
            self.report(identity)

    def reconnecting(self) -> None:
        if not self._runner.is_open or self._is_reconnecting:
            return
        self._is_reconnecting = True
        self._runner.feed({"type": "connection", "state": "reconnecting"})

    def reconnected(self) -> None:
        """The connection is back."""
        if self._port.local()["sid"] != self._sid:
            return self._rejoined()
        if self._is_reconnecting:
            self._is_reconnecting = False
            self._runner.feed({"type": "connection", "state": "connected"})
        self._changed.update(self._reported, (who["identity"] for who in self._port.participants()))
        self.flush()
        self._restored()
        for delay in RECHECKS:
            self._loop.call_later(delay, self._flush_later)

    def _flush_later(self) -> None:
        self._is_flush_scheduled = False
        self._runner.safely(self.flush)

    def _rejoined(self) -> None:
        """The local participant has another sid: no packet of the old join may be sent in the new one."""
        local, present_now = self._port.local(), self._port.participants()
        for packet in self._interrupt():
            self._runner.feed({"type": "send_failed", "packet": packet, "why": "interrupted"})
        self.begin(local)
        self._reported.update({who["identity"]: who for who in present_now})
        self._runner.feed({"type": "rejoined", "local": local, "present": [self._judge(who) for who in present_now]})
        self._restored()

    def _judge(self, who: Participant) -> Participant:
        """Evaluates the author's rules."""
        judged = dict(who)
        for name, rule in (("admitted", self._rules.admit), ("mayStop", self._rules.may_stop)):
            if rule is None:
                continue
            try:
                judged[name] = rule(participant(who)) is True
            except Exception as error:
                judged[name] = False
                self._warn(f'the rule for {who["identity"]} raised {describe(error)}; it counts as false')
        return judged
