"""A participant that offers tools to the assistant in its room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ._executor import THREADS
from ._json import present
from ._options import check_options
from ._participant import BaseParticipant, config_of
from ._room_driver import DriverOptions

if TYPE_CHECKING:
    from livekit import rtc

    from ._types import AskPerson, Tools


class Client(BaseParticipant):
    """Offers tools over a room.

    - ``tools``: functions, with or without ``@tool``.
    - ``consent``: asks a person before a tool runs that needs consent. Without it, such tools are not offered. A plain function
      runs in a thread.
    - ``assistant``: the identity of the assistant whose calls are accepted. Default: the only eligible one in the room.
    - ``threads``: how many plain functions run at once. Default: 16.
    - ``version``: the name and version that others see.
    - ``fast_lane``: small frames are sent over the lossy channel first. Default: true.
    - ``times``, ``caps``: times in seconds and limits, by the names of toolbridge's ``Times`` and of the fields of ``Caps``.
    """

    _is_assistant = False

    def __init__(
        self,
        room: rtc.Room,
        tools: Tools = (),
        *,
        consent: AskPerson | None = None,
        assistant: str | None = None,
        threads: int = THREADS,
        version: str | None = None,
        fast_lane: bool | None = None,
        times: Mapping[str, float] = {},
        caps: Mapping[str, int] = {},
    ) -> None:
        check_options(assistant=assistant, consent=consent, threads=threads)
        config = {**config_of(version, fast_lane, times, caps), **present(assistant=assistant)}
        super().__init__(room, tools, DriverOptions("client", config, threads=threads, consent=consent))

    @property
    def assistant(self) -> str | None:
        """The identity of the bound assistant, which may call the tools, once there is one."""
        bound: str | None = self._query("state", "bound", None)
        return bound

    def ask_to_stop(self, call: str | None = None) -> None:
        """Asks the assistant to stop a call, or all that an interruption would stop. It need not obey.

        Raises ``RuntimeError`` if there is no assistant.
        """
        self._check_loop()
        reply = self._driver.input({"type": "ask_to_stop", **present(call=call)})
        self._expect_done(reply, "the assistant cannot be asked")
