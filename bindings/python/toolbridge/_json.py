"""Writes values as JSON text, and refuses what JSON cannot hold."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ._record import Record

JsonObject = dict[str, Any]


def to_json_text(value: object, what: str) -> str:
    """Writes a value as JSON text. Dataclasses and pydantic's models are written as objects.

    Raises ``TypeError``, which names the place in ``what``, if JSON cannot hold it: NaN, bytes, sets, cycles.
    """
    try:
        text = _ENCODER.encode(value)
        if _LONG.search(text) is not None and _find(value, what, []) is not None:
            raise ValueError
        return text if text.isascii() else repaired(text)
    except (TypeError, ValueError, RecursionError) as error:
        place = _find(value, what, [])
        raise TypeError(f"{place or f'{what} is {error}'}, which JSON cannot hold") from None


def repaired(text: str) -> str:
    """Returns a text in which each half of a surrogate pair is U+FFFD, such as in the name of a file that is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def join_json(fields: Mapping[str, object], raw: Mapping[str, str]) -> str:
    """Writes an object of plain fields, to which ``raw`` adds fields whose values are JSON texts already."""
    text = json_text(fields)[:-1]
    for name, value in raw.items():
        text += f'{"," if len(text) > 1 else ""}{json_text(name)}:{value}'
    return text + "}"


def parse(text: str) -> JsonObject:
    """Reads an object that the core has written: there is no space around it."""
    value: JsonObject = _DECODER.raw_decode(text)[0]
    return value


def present(**fields: object) -> dict[str, object]:
    """Leaves out the fields that are ``None``."""
    return {name: value for name, value in fields.items() if value is not None}


def _as_json(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump(mode="json")
    if isinstance(value, Record):
        return vars(value)
    import dataclasses  # only now: few programs return one

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    # A set has no order, and bytes are no text.
    if not isinstance(value, (bytes, bytearray, memoryview, set, frozenset, Iterator, BaseException)):
        try:
            from pydantic_core import to_jsonable_python  # dates, decimals, enumerations, ids and paths
        except ImportError:
            pass
        else:
            try:
                return to_jsonable_python(value)
            except Exception:
                pass  # it does not know the type either
    raise TypeError(f"of the type {type(value).__name__}")


#: ``json.dumps`` makes a new encoder at each call that has options.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_json)
_DECODER = json.JSONDecoder()

#: What may be an integer of more than 64 bits, which would become another number.
_LONG = re.compile(r"\d{19}")

#: Writes what this shell has made itself as JSON text.
json_text = json.JSONEncoder(separators=(",", ":")).encode


def _find(value: object, place: str, inside: list[int]) -> str | None:
    """Says where the first thing is that JSON cannot hold, and what it is."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**64 else f"{place} is an integer of more than 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{place} is {value}"
    if isinstance(value, str):
        return None
    if id(value) in inside:
        return f"{place} contains itself"
    if len(inside) > _DEEPEST:
        return f"{place} is nested too deeply"
    inside = [*inside, id(value)]
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, (str, int, float, bool, type(None))):
                return f"{place} has a key of the type {type(key).__name__}"
            found = _find(item, f"{place}.{key}", inside)
            if found is not None:
                return found
        return None
    if isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            found = _find(item, f"{place}[{at}]", inside)
            if found is not None:
                return found
        return None
    try:
        return _find(_as_json(value), place, inside)
    except Exception:
        return f"{place} is of the type {type(value).__name__}"


#: How deep a place is searched for. The core allows 64 levels.
_DEEPEST = 200
