"""Lets a room have one participant of toolbridge at a time."""

from __future__ import annotations

import weakref
from typing import Any

#: The rooms that are in use, and by what.
_used: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def claim(room: Any, what: str) -> None:
    """Claims a room for one participant of toolbridge. Raises ``RuntimeError`` if another one has it."""
    used = _used.get(room)
    if used is not None:
        raise RuntimeError(f"this room already has {used}; close it before you create {what}")
    _used[room] = what


def release(room: Any) -> None:
    """Frees a room for another participant of toolbridge."""
    _used.pop(room, None)
