"""Types that only annotations name. Only for the type checker: to make them takes time at the start of every program."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, Protocol, Union

from ._assistant import Choice, Progress
from ._executor import Failure
from ._questions import ConsentRequest
from ._room import Participant, ReceivedStream
from ._tool import Tool
from ._vocabulary import BargeIn as BargeIn
from ._vocabulary import Consent as Consent
from ._vocabulary import Disclose as Disclose
from ._vocabulary import ProgressStatus as ProgressStatus
from ._vocabulary import StopReason as StopReason

RoomState = Literal["disconnected", "connected", "reconnecting"]

#: What may be offered: functions, with or without ``tool``.
Tools = Iterable[Union[Tool, Callable[..., Any]]]

#: Asks a person. If the question is withdrawn, an ``async`` function is cancelled.
AskPerson = Callable[[ConsentRequest], Union[bool, Awaitable[bool]]]

#: A rule about participants. One that raises counts as false.
Rule = Callable[[Participant], bool]

#: Chooses among several participants, by their identities. The second argument is the tool, or ``None``.
Chooser = Callable[[list[str], Union[str, None]], Union[str, None]]
Choose = Union[Choice, Chooser]

OnProgress = Callable[[Progress], None]


class PortEvents(Protocol):
    """What is reported of a room, on its loop."""

    def connected(self) -> None: ...
    def reconnecting(self) -> None: ...
    def reconnected(self) -> None: ...
    def disconnected(self, reason: Mapping[str, str]) -> None: ...
    def changed(self, identity: str) -> None: ...
    def packet(self, sender: str | None, is_reliable: bool, topic: str, data: bytes) -> None: ...
    def stream(self, stream: ReceivedStream) -> None: ...
    def room_input(self, text: str, data: bytes | None = None) -> None: ...
    def failed(self, error: Exception) -> None: ...
    def exiting(self) -> None: ...
    async def leaving(self) -> None: ...
    def left(self) -> None: ...
