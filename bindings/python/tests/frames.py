"""Frames of the wire as tests write and read them: MessagePack, as far as frames need it."""

from __future__ import annotations

import struct
from typing import Any

TOPIC = "toolbridge"

ERROR, REQUEST, RESULT, ACKNOWLEDGEMENT, STOP = 1, 6, 7, 8, 10
CONFIGURATION, REGISTER, REGISTER_ACKNOWLEDGEMENT, HEARTBEAT, PROGRESS = 12, 70, 71, 72, 1000


def frame(kind: int, body: Any, *, meta: dict[str, Any] = {}, stanza: int = 1_000) -> bytes:
    return pack({"stanzaId": stanza, "conversationId": "room", "type": kind, "meta": meta, "body": body})


def pack(value: Any) -> bytes:
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return b"\xd3" + struct.pack(">q", value)
    if isinstance(value, str):
        data = value.encode()
        return b"\xdb" + struct.pack(">I", len(data)) + data
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(pack, value))
    if isinstance(value, dict):
        return b"\xdf" + struct.pack(">I", len(value)) + b"".join(pack(key) + pack(it) for key, it in value.items())
    raise TypeError(type(value).__name__)


def unpack(data: bytes) -> Any:
    value, at = _read(data, 0)
    assert at == len(data)
    return value


#: The formats of numbers, by their first bytes.
_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}

#: The formats of the lengths of texts, bytes, lists and maps.
_LENGTHS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def _read(data: bytes, at: int) -> tuple[Any, int]:
    first = data[at]
    at += 1
    if first < 0x80:
        return first, at
    if first >= 0xE0:
        return first - 256, at
    if first in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[first], at
    if first in _NUMBERS:
        (number,) = struct.unpack_from(_NUMBERS[first], data, at)
        return number, at + struct.calcsize(_NUMBERS[first])
    if first < 0x90:
        return _read_map(data, at, first & 0x0F)
    if first < 0xA0:
        return _read_list(data, at, first & 0x0F)
    if first < 0xC0:
        length = first & 0x1F
        return data[at : at + length].decode(), at + length
    (length,) = struct.unpack_from(_LENGTHS[first], data, at)
    at += struct.calcsize(_LENGTHS[first])
    if first >= 0xDE:
        return _read_map(data, at, length)
    if first >= 0xDC:
        return _read_list(data, at, length)
    part = data[at : at + length]
    return (part.decode() if first >= 0xD9 else part), at + length


def _read_list(data: bytes, at: int, length: int) -> tuple[Any, int]:
    found = []
    for _ in range(length):
        value, at = _read(data, at)
        found.append(value)
    return found, at


def _read_map(data: bytes, at: int, length: int) -> tuple[Any, int]:
    found = {}
    for _ in range(length):
        key, at = _read(data, at)
        found[key], at = _read(data, at)
    return found, at
