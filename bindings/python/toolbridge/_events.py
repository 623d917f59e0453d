"""What happens in a room, for listeners."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from ._options import unknown
from ._vocabulary import CoreEvent

logger = logging.getLogger("toolbridge")

EventName = Literal[CoreEvent, "connected", "left_out", "closed", "warning", "error"]

NAMES: frozenset[str] = frozenset(get_args(EventName))

_OF_THE_CORE: tuple[str, ...] = get_args(CoreEvent)

Event = Mapping[str, Any]
Listener = Callable[[Event], None]

#: What is logged if nobody listens: what keeps tools from working at all.
_LOUD = {"unaccepted", "not_admitted", "not_allowed", "ambiguous_assistant", "left_out", "warning", "error"}

#: The most different texts that are logged.
_MAX_LOGGED = 64


def _in_words(name: str, event: Event) -> str:
    if name == "left_out":
        left = [f'{it.get("tool", "tools")}: {it["why"]}' for it in event["tools"]]
        return f"not offered: {'; '.join(left)}"
    if name == "ambiguous_assistant":
        names = ", ".join(event["candidates"])
        return f"several participants may be the assistant: {names}; name one with the option `assistant`"
    return str(event.get("message") or event.get("error") or name)


class Emitter:
    """Calls the listeners of events. One that raises affects nobody else."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Listener]] = {}
        self._logged: set[str] = set()
        #: Called when another event of the core is wanted.
        self.wanted_changed: Callable[[], None] = lambda: None

    def wanted(self) -> list[str]:
        """The core's events that somebody listens to, or that are logged otherwise."""
        return [name for name in _OF_THE_CORE if name in _LOUD or self._listeners.get(name)]

    def on(self, name: str, listener: Listener) -> Callable[[], None]:
        if name not in NAMES:
            raise ValueError(unknown("event", name, NAMES))
        listeners = self._listeners.setdefault(name, [])

        # Its own function, so that a listener that is added twice is called and removed twice.
        def own(event: Event) -> None:
            listener(event)

        listeners.append(own)
        if len(listeners) == 1 and name in _OF_THE_CORE:
            self.wanted_changed()

        def remove() -> None:
            # What nobody wants any more is left out at the next change: this may be called in another thread.
            if own in listeners:
                listeners.remove(own)

        return remove

    def emit(self, name: EventName, event: Event) -> None:
        listeners = self._listeners.get(name)
        if not listeners:
            if name in _LOUD:
                self._log(name, event)
            return
        for listener in list(listeners):
            try:
                listener(event)
            except Exception:
                logger.exception('a listener of "%s" raised', name)

    def tool_raised(self, tool: str, error: Exception) -> None:
        """Logs an exception of a tool, unless somebody listens to ``tool_failed``: its caller does not see it."""
        if not self._listeners.get("tool_failed"):
            logger.error('the tool "%s" raised; the caller gets execution_error', tool, exc_info=error)

    def _log(self, name: str, event: Event) -> None:
        """Logs an event, once."""
        text = _in_words(name, event)
        if text in self._logged or len(self._logged) >= _MAX_LOGGED:
            return
        self._logged.add(text)
        logger.warning("%s", text)
