"""The keys of a room whose data is encrypted end to end, for participants that join by themselves."""

from __future__ import annotations

from . import _core


class E2eeKeys:
    """A ring of keys that all participants share, which may change while they are in the room.

    ``key`` is a text or its bytes: the shared key of LiveKit's SDKs. With ``random_bytes=True`` it is random bytes, as a key that
    is an ``ArrayBuffer`` in ``livekit-client``. ``salt`` is the option ``ratchet_salt`` of those SDKs.

    ``index`` is its place in the ring, 0 to 15. A key without one reads packets of every place, and is sent with the place that
    others last used. ``ratchet_window``: how many steps of the others' ratchet are followed at once.

    Each key takes some tens of milliseconds.
    """

    def __init__(
        self,
        key: str | bytes,
        *,
        index: int | None = None,
        salt: str | bytes | None = None,
        random_bytes: bool = False,
        ratchet_window: int = 0,
    ) -> None:
        kind = getattr(_core, "Keys", None)
        if kind is None:
            raise NotImplementedError("this build of toolbridge cannot join rooms by itself")
        salted = None if salt is None else _bytes("salt", salt)
        self._core = kind(_bytes("key", key), random_bytes, salted, _place(index), ratchet_window)

    def set(self, key: str | bytes, *, index: int | None = None) -> None:
        """Puts a key at its place, and sends with it from now on. The one before is read for 10 s more."""
        self._core.put(_bytes("key", key), _place(index), True)

    def add(self, key: str | bytes, *, index: int | None = None) -> None:
        """Puts a key at its place, for reading."""
        self._core.put(_bytes("key", key), _place(index), False)

    def ratchet(self) -> None:
        """Replaces the key for sending with the next one of its ratchet."""
        self._core.ratchet()


def keys_of(given: E2eeKeys | str | bytes | None) -> E2eeKeys | None:
    """The keys that an argument means."""
    return given if given is None or isinstance(given, E2eeKeys) else E2eeKeys(given)


def _bytes(name: str, text: str | bytes) -> bytes:
    if not isinstance(text, (str, bytes)):
        raise TypeError(f"`{name}` must be a text or bytes, not {type(text).__name__}")
    encoded = text.encode() if isinstance(text, str) else text
    if not encoded:
        raise ValueError(f"`{name}` is empty")
    return encoded


def _place(index: int | None) -> int | None:
    if index is not None and not 0 <= index <= 15:
        raise ValueError(f"the index {index} is no place of a key ring: 0 to 15")
    return index
