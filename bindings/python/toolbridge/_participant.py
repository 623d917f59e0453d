"""What clients and assistants have in common."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, overload

from . import _core
from ._e2ee import E2eeKeys, keys_of
from ._events import Emitter, EventName, Listener
from ._json import JsonObject
from ._names import participant
from ._options import check_options, check_plain
from ._room import Port, check, room_loop
from ._room_claim import claim, release
from ._room_driver import DriverOptions, RoomDriver
from ._tool import name_tools
from ._vocabulary import CAPS, TIMES

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._driver import Driver
    from ._types import Tools


logger = logging.getLogger("toolbridge")


class BaseParticipant:
    """A participant of a room."""

    _is_assistant: ClassVar[bool]

    def __init__(self, room: Any, tools: Tools, options: DriverOptions) -> None:
        what = "a Client" if options.role == "client" else "an Assistant"
        check(room)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(f"create {what} in a coroutine, on the event loop of the room") from None
        of_room = room_loop(room)
        if of_room is not None and of_room is not loop:
            raise RuntimeError(f"{what} is created on {named(loop)}, but the room belongs to {named(of_room)}")
        emitter, offered = Emitter(), name_tools(tools)
        self._port = room if isinstance(room, Port) else None
        if self._port is not None:
            options = options.replace(config={**self._port.config, **options.config})
        claim(room, what)
        try:
            driver = RoomDriver(room, loop, emitter, offered, options)
        except BaseException:
            release(room)
            raise
        self._begin(loop, emitter, driver)

    def _begin(self, loop: asyncio.AbstractEventLoop, emitter: Emitter, driver: Driver) -> None:
        """Completes the construction. The driver's events reach the emitter."""
        self._loop = loop
        self._emitter = emitter
        self._driver = driver
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def join(
        cls, url: str, token: str, tools: Tools = (), *, e2ee: E2eeKeys | str | bytes | None = None, **options: Any
    ) -> Self:
        """Joins a room as a participant of its own, by toolbridge's transport in Rust. It does not need the package ``livekit``.

        ``e2ee`` is the shared key of a room whose data is encrypted end to end, or ``E2eeKeys``. A grant of the token that makes its
        role impossible is logged as a warning. The other arguments are those of the constructor. ``aclose`` also leaves the room.
        Raises ``JoinError``.
        """
        from ._join import JoinedRoom

        for name, value in (("url", url), ("token", token)):
            if not isinstance(value, str):
                raise TypeError(f"`{name}` must be a text, not {type(value).__name__}")
        room = JoinedRoom(url, token, asyncio.get_running_loop(), keys_of(e2ee))
        for warning in _core.token_warnings(token, cls._is_assistant):
            logger.warning("%s", warning)
        make: Any = cls
        try:
            made: Self = make(room, tools, **options)
        except BaseException:
            room.leave()
            raise
        try:
            await room.joined(made._driver.stop)
        except BaseException:
            await made.aclose()
            raise
        return made

    @overload
    def on(self, name: EventName, listener: Listener) -> Callable[[], None]: ...
    @overload
    def on(self, name: EventName) -> Callable[[Listener], Listener]: ...
    def on(self, name: EventName, listener: Listener | None = None) -> Any:
        """Calls a function at each such event. Returns a function that ends it; without a listener, a decorator."""
        self._check_loop()
        if listener is not None:
            check_plain(f'the listener of "{name}"', listener)
            return self._emitter.on(name, listener)

        def decorate(listener: Listener) -> Listener:
            check_plain(f'the listener of "{name}"', listener)
            self._emitter.on(name, listener)
            return listener

        return decorate

    @property
    def is_open(self) -> bool:
        """Whether the room is connected."""
        return self._driver.is_open

    def offer(self, tools: Tools) -> None:
        """Replaces the offered tools. Raises as the constructor does; nothing changes then."""
        self._check_loop()
        self._driver.offer(name_tools(tools))

    def participants(self) -> list[JsonObject]:
        """The participants in the room that toolbridge knows."""
        return [participant(who) for who in self._query("participants", "participants", [])]

    def stats(self) -> Mapping[str, int]:
        """Counters, such as dropped and repeated frames. Those that are 0 are missing."""
        return {**self._query("stats", "stats", {}), **self._driver.counters}

    async def aclose(self) -> None:
        """Says goodbye, stops the tools that run, and leaves the room to others; the room stays connected.

        Returns when the last packets are sent, or after a second.
        """
        self._check_loop()
        if self._closing is None:
            self._closing = self._loop.create_task(self._driver.stop())
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _check_loop(self) -> None:
        """Raises ``RuntimeError`` if this is not the room's loop, or another thread."""
        if self._port is not None:
            self._port.check_process()
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            return
        what = type(self).__name__
        if self._loop.is_closed():
            raise RuntimeError(f"the event loop of this {what} is closed: {self._loop!r}")
        where = "outside of an event loop" if running is None else f"on {named(running)}"
        raise RuntimeError(
            f"this {what} belongs to the event loop of its room, {named(self._loop)}, but is used {where}; "
            "use asyncio.run_coroutine_threadsafe"
        )

    def _query(self, kind: str, field: str, missing: Any, **fields: object) -> Any:
        self._check_loop()
        reply = self._driver.query({"type": kind, **fields})
        return missing if reply is None else reply.get(field, missing)

    def _expect_done(self, reply: JsonObject | None, what: str) -> None:
        """Raises ``RuntimeError`` with the core's text if an input had no effect."""
        if reply is None:
            raise RuntimeError(f"{what}: this participant is not in the room")
        if reply["type"] == "failed":
            raise RuntimeError(f'{what}: {reply["message"]}')


def named(loop: asyncio.AbstractEventLoop) -> str:
    """An event loop with its address: two of one kind look the same otherwise."""
    return f"{loop!r} at {id(loop):#x}"


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def config_of(
    version: str | None, fast_lane: bool | None, times: Mapping[str, float], caps: Mapping[str, int]
) -> dict[str, object]:
    check_options(version=version, fast_lane=fast_lane, times=times, caps=caps)
    config: dict[str, object] = {}
    if version is not None:
        config["version"] = version
    if fast_lane is not None:
        config["fastLane"] = fast_lane
    if times:
        config["times"] = {TIMES[name]: milliseconds(seconds) for name, seconds in times.items()}
    if caps:
        config["caps"] = {CAPS[name]: cap for name, cap in caps.items()}
    return config
