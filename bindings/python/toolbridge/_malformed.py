"""How the core says that a value is larger than any frame. Only this file knows."""

from __future__ import annotations

import re

from ._core import Session

#: What the message of the exception begins with if the core has panicked.
PANIC = "panic: "

_TOO_LARGE = re.compile(r": (\d+) bytes exceed the limit of (\d+)")


def too_large(error: ValueError) -> tuple[int, int] | None:
    """Returns the size of a value that the core refuses, and the limit, in bytes; ``None`` if it is refused otherwise."""
    found = _TOO_LARGE.search(str(error))
    return None if found is None else (int(found[1]), int(found[2]))


__all__ = ["PANIC", "Session", "too_large"]
