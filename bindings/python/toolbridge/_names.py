"""Gives objects of the core Python's names and units."""

from __future__ import annotations

from collections.abc import Mapping

from ._json import JsonObject
from ._vocabulary import RECORDS, Fields


def in_python(value: JsonObject, fields: Fields) -> JsonObject:
    """Returns an object of the core with names in snake_case, and times in seconds."""
    named = {}
    for key, item in value.items():
        name, record, is_time = fields.get(key, (key, None, False))
        if record is not None:
            item = in_python(item, RECORDS[record])
        named[name] = item / 1000 if is_time else item
    return named


def participant(who: Mapping[str, object]) -> JsonObject:
    """Returns a participant as an application sees it."""
    return in_python(dict(who), RECORDS["Participant"])
