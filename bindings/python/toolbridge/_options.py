"""Checks what an application passes, before anything has changed. Each error names the option and what it may be."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from typing import Any

from . import _vocabulary

#: The longest time of the core's inputs, in seconds.
_LONGEST = 9_007_199_254.0

_TEXTS = ("title", "short_title", "source")
_FLAGS = ("destructive", "idempotent", "read_only", "open_world", "prefer_client")
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "consent": ("never", "once_per_session", "always"),
    "disclose": ("full", "name", "nothing"),
    "barge_in": ("cancel", "finish", "report"),
}
#: The times of a tool, and whether they may be 0.
TIMES: Mapping[str, bool] = {"timeout": False, "patience": False, "cancel_grace": True}
_OBJECTS = ("schema", "output_schema", "meta")
_ALL = ("name", "description", "validate", *_TEXTS, *_FLAGS, *_CHOICES, *TIMES, *_OBJECTS)


def check_options(**options: Any) -> None:
    """Raises ``TypeError`` or ``ValueError``, which names the option of a client or an assistant that has a wrong value."""
    for name, value in options.items():
        where = f"`{name}`"
        if value is None:
            continue
        if name in ("version", "assistant"):
            _expect(isinstance(value, str), where, "a text", value)
        elif name in ("fast_lane", "admit_only_roles"):
            _expect(isinstance(value, bool), where, "True or False", value)
        elif name == "threads":
            _expect(_is_count(value) and value >= 1, where, "a whole number of 1 or more", value)
        elif name == "clients":
            _expect(not isinstance(value, (str, bytes)) and isinstance(value, Iterable), where, "a list", value)
        elif name in ("times", "caps", "pins"):
            _expect(isinstance(value, Mapping), where, "a dictionary", value)
            known = {"times": _vocabulary.TIMES, "caps": _vocabulary.CAPS, "pins": tuple(value)}[name]
            for key, item in value.items():
                if key not in known:
                    raise ValueError(f"{where}: {unknown('option', key, known)}")
                of = f'`{name}["{key}"]`'
                if name == "times":
                    check_seconds(of, item, may_be_zero=True)
                elif name == "caps":
                    _expect(_is_count(item), of, "a whole number of 0 or more", item)
                else:
                    _expect(isinstance(item, str), of, "a text", item)
        else:
            _expect(callable(value), where, "a function", value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_plain(where: str, function: object) -> None:
    """Raises ``TypeError`` if this is neither ``None`` nor a plain function: nobody would await what another one returns."""
    if function is None:
        return
    _expect(callable(function), where, "a function", function)
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):
        raise TypeError(f"{where} must be a plain function, not an `async` one: nothing waits for it. Let it start a task")


def check_tool_options(tool: str, options: Mapping[str, Any]) -> None:
    """Raises ``TypeError`` or ``ValueError``, which names the tool, if an option is unknown or has a value that it cannot have."""
    for name, value in options.items():
        where = f'tool "{tool}": `{name}`'
        if name not in _ALL:
            raise TypeError(f'tool "{tool}": {unknown("option", name, _ALL)}')
        if name in ("name", "description", *_TEXTS):
            _expect(isinstance(value, str), where, "a text", value)
        elif name in _FLAGS:
            _expect(isinstance(value, bool), where, "True or False", value)
        elif name in _OBJECTS:
            _expect(isinstance(value, dict), where, "a dictionary", value)
        elif name == "validate":
            _expect(callable(value), where, "a function", value)
        elif name in TIMES:
            check_seconds(where, value, may_be_zero=TIMES[name])
        else:
            check_choice(where, value, _CHOICES[name])


def check_choice(where: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises ``ValueError`` if the value is none of these names."""
    if value not in choices:
        names = ", ".join(f'"{it}"' for it in choices)
        raise ValueError(f"{where} is {value!r}; it must be one of {names}")


def check_seconds(where: str, seconds: Any, *, may_be_zero: bool = False) -> None:
    """Raises ``TypeError`` or ``ValueError`` if this is no number of seconds that a limit can have."""
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        raise TypeError(f"{where} must be a number of seconds, not {type(seconds).__name__}")
    value = float(seconds)
    if not math.isfinite(value) or value > _LONGEST or value < 0 or (value == 0 and not may_be_zero):
        least = "of 0 or more" if may_be_zero else "above 0"
        raise ValueError(f"{where} is {seconds}; it must be a number of seconds {least}")


def check_limits(*, timeout: float | None = None, wait: Mapping[str, float | None] = {}) -> None:
    """Checks the limit of a call, and times for which something is waited, which may be 0. ``None`` is no limit."""
    if timeout is not None:
        check_seconds("`timeout`", timeout)
    for name, seconds in wait.items():
        if seconds is not None:
            check_seconds(f"`{name}`", seconds, may_be_zero=True)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Says that there is no option or event of this name, which one is meant, and which there are."""
    names = sorted(known)
    # As JavaScript writes it, too: `readOnly`.
    snake = "".join(f"_{it.lower()}" if it.isupper() else it for it in name)
    import difflib  # only for this error: it takes time at the start of a program

    meant = [snake] if snake in names else difflib.get_close_matches(snake, names, 1)
    hint = f' (did you mean "{meant[0]}"?)' if meant else ""
    return f'there is no {what} "{name}"{hint}; the {what}s are {", ".join(names)}'


def _expect(is_right: bool, where: str, what: str, value: object) -> None:
    if not is_right:
        found = value if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__
        raise TypeError(f"{where} must be {what}, not {found}")
