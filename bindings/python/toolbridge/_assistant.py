"""A participant that calls the tools of the clients in its room."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

from ._errors import NotReady, call_error, closed_error
from ._events import Event
from ._executor import THREADS
from ._json import JsonObject, present, to_json_text
from ._options import check_choice, check_limits, check_options, check_plain
from ._participant import BaseParticipant, config_of, milliseconds
from ._record import Record
from ._room_driver import DriverOptions
from ._room_view import Rules
from ._tracing import with_span
from ._vocabulary import CallError

if TYPE_CHECKING:
    from livekit import rtc
    from livekit.agents import AgentSession

    from ._driver import Driver
    from ._types import AskPerson, Choose, OnProgress, ProgressStatus, Rule, Tools
    from .agents import RoomToolset

logger = logging.getLogger("toolbridge")

#: How long before the end of its time ``ready`` pings a client that has not registered, in seconds.
PROBE = 1.0

Choice = Literal["nobody", "first", "last", "last_heard"]


class Progress(Record):
    """A report of a tool that runs."""

    status: ProgressStatus
    message: str | None = None
    content: Any = None


class ToolDescription(Record):
    """A tool as its owner describes it. The texts come from others."""

    name: str
    description: str
    #: The JSON Schema of the arguments.
    parameters: JsonObject
    title: str | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    read_only: bool | None = None


class OfferedTool(Record):
    """A tool that can be called now."""

    #: The identity of the participant that offers it.
    owner: str
    tool: ToolDescription


class ModelTool(Record):
    """A tool in the form that all model APIs accept. A call by it has ``model=True``."""

    name: str
    #: Also says what the schema cannot.
    description: str
    #: The JSON Schema of the arguments.
    parameters: JsonObject
    #: The tool's own name.
    tool: str
    #: The participants that offer it. With several, a call names one in ``to``, or the assistant chooses.
    owners: list[str]


class Late(Record):
    """The result of a call that a barge-in had left running."""

    call: str
    tool: str
    owner: str | None
    value: Any
    error: CallError | None
    #: How long it took, in seconds.
    took: float


class Assistant(BaseParticipant):
    """Calls tools over a room.

    - ``clients``: clients that are admitted by their identities. Default: participants whose token has the attribute
      ``toolbridge.role: client``, or the only other one.
    - ``admit``: admits the participants for which it returns true, in addition to those with the role ``client``.
    - ``admit_only_roles``: admits no participant only because it is alone. Default: true if there is ``admit``.
    - ``allow_stop``: lets clients stop calls for which it returns true. Default: none.
    - ``pins``: the client that runs a tool which several offer, by the tool's name.
    - ``choose``: which of several clients that offer a tool runs it; a function gets their identities and the tool, and
      returns one. Default: ``nobody``.
    - ``tools``, ``consent`` and the others: see ``Client``; ``tools`` are those of the assistant itself.
    """

    _is_assistant = True

    def __init__(
        self,
        room: rtc.Room,
        tools: Tools = (),
        *,
        clients: Iterable[str] = (),
        admit: Rule | None = None,
        admit_only_roles: bool | None = None,
        allow_stop: Rule | None = None,
        pins: Mapping[str, str] = {},
        choose: Choose | None = None,
        consent: AskPerson | None = None,
        threads: int = THREADS,
        version: str | None = None,
        fast_lane: bool | None = None,
        times: Mapping[str, float] = {},
        caps: Mapping[str, int] = {},
    ) -> None:
        if choose is not None and not callable(choose):
            check_choice("`choose`", choose, get_args(Choice))
        check_options(clients=clients, admit_only_roles=admit_only_roles, pins=pins, consent=consent)
        for name, rule in (("admit", admit), ("allow_stop", allow_stop), ("choose", choose if callable(choose) else None)):
            check_plain(f"`{name}`", rule)
        only_roles = True if admit_only_roles is None and admit is not None else admit_only_roles
        config = {
            **config_of(version, fast_lane, times, caps),
            "admit": list(clients),
            "pins": [{"tool": tool, "owner": owner} for tool, owner in pins.items()],
            **present(admitOnlyRoles=only_roles, choose="ask" if callable(choose) else choose),
        }
        chooser = choose if callable(choose) else None
        options = DriverOptions("assistant", config, threads, consent, Rules(admit, allow_stop), chooser)
        super().__init__(room, tools, options)
        self._turns = 0

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] = {},
        *,
        to: str | None = None,
        timeout: float | None = None,
        owner_wait: float | None = None,
        on_progress: OnProgress | None = None,
        meta: Mapping[str, Any] | None = None,
        model: bool = False,
    ) -> JsonObject:
        """Calls a tool, and returns its result: an object. Any other value that a tool returns arrives as ``{"value": …}``.

        - ``to``: the identity of the client that runs the tool, whichever others offer it.
        - ``timeout``: in seconds. Default: the tool's patience, otherwise 30.
        - ``owner_wait``: how long to wait for a client that offers the tool, in seconds. Default: 5.
        - ``on_progress``: called at each report of the tool.
        - ``meta``: sent along with the request.
        - ``model``: whether a model makes the call: the tool and the keys of its arguments have the names in ``model_tools()``.

        Raises a ``CallError``, of which each kind has a subclass, or ``TypeError`` if JSON cannot hold the arguments.

        If the task is cancelled, the call is cancelled, too, also at the client.
        """
        return await self._call(tool, arguments, None, to, timeout, owner_wait, on_progress, meta, model)

    def turn(self) -> Turn:
        """Begins a turn: one reply of the model, whose calls end together when the user interrupts."""
        self._check_loop()
        self._turns += 1
        return Turn(self, self._turns)  # the core begins it with its first call

    def tools(self) -> list[OfferedTool]:
        """The tools that can be called now: those of clients, and this assistant's own."""
        offers = self._query("tools", "tools", [])
        return [OfferedTool(offer["owner"], _describe(offer["tool"])) for offer in offers]

    def model_tools(self) -> list[ModelTool]:
        """The tools that can be called now, for a request to a model: in the form that all model APIs accept.

        A model's call is ``call(name, arguments, model=True)``. Of several owners that describe a tool differently, each has an
        entry. A tool that no model can call is left out, with a warning in the log.
        """
        self._check_loop()
        reply = self._driver.query({"type": "model_tools"}) or {"tools": [], "leftOut": []}
        for left_out in reply["leftOut"]:
            logger.warning("%s", left_out["why"])
        tools = reply["tools"]
        return [ModelTool(it["name"], it["description"], it["inputSchema"], it["tool"], it["owners"]) for it in tools]

    def why_not_offered(self, tool: str) -> CallError:
        """Why a tool that is not among ``tools()`` cannot be called now: the error that a call of it would end with."""
        error = self._query("why_not_offered", "error", None, tool=tool)
        return closed_error("this participant is not in the room", False) if error is None else call_error(error)

    def late_results(self) -> list[Late]:
        """The results of calls that a barge-in had left running, since the last call of this method."""
        return [
            Late(
                late["call"],
                late["tool"],
                late.get("owner"),
                late.get("value"),
                call_error(late["error"]) if "error" in late else None,
                late["tookMs"] / 1000,
            )
            for late in self._query("late_results", "results", [])
        ]

    async def ready(self, client: str, *, timeout: float = 10.0) -> list[ToolDescription]:
        """Waits until the tools of this client are known. A call waits as well, but within its own limit.

        The list is empty for a client without toolbridge's handshake: one that says so is ready at once, and one that has
        answered nothing when the time is over.

        Raises ``NotReady`` when the time is over; earlier for a participant that never offers tools.
        """
        self._check_loop()
        check_limits(wait={"timeout": timeout})
        driver = self._driver
        _require_session(driver)
        driver.input({"type": "expect", "identity": client})
        done: asyncio.Future[list[ToolDescription]] = self._loop.create_future()
        why, is_checking = "it has not been heard", False

        def check(is_over: bool = False) -> None:
            nonlocal why, is_checking
            if is_checking or done.done():
                return
            is_checking = True
            reply = driver.query({"type": "readiness", "identity": client})
            is_checking = False
            if reply is None:
                return done.set_exception(closed_error("this participant has left the room", False))
            readiness = reply["readiness"]
            why = reply.get("message", why)
            if readiness == "ready" or (is_over and readiness == "silent"):
                done.set_result([_describe(tool) for tool in reply.get("tools", ())])
            elif readiness == "never":
                done.set_exception(NotReady(client, why))

        unwatch = driver.watch(check)
        probe = self._loop.call_later(
            max(timeout - PROBE, 0), lambda: driver.input({"type": "probe", "identity": client})
        )
        try:
            check()
            await asyncio.wait([done], timeout=timeout)
            check(is_over=True)
            if done.done():
                return done.result()
            raise NotReady(client, f"{why}; waited {timeout:g} s")
        finally:
            unwatch()
            probe.cancel()
            driver.input({"type": "stop_expecting", "identity": client})

    def show_view(self, view: str, content: object, text: str | None = None) -> None:
        """Shows a view, the latest state of something, to the clients."""
        self._check_loop()
        raw = {"content": to_json_text(content, "content")}
        reply = self._driver.input({"type": "show_view", "view": view, **present(text=text)}, raw)
        self._expect_done(reply, f'the view "{view}" cannot be shown')

    def toolset(
        self, *, session: AgentSession[Any] | None = None, report_progress: bool = False, id: str | None = None
    ) -> RoomToolset:
        """The tools of the room, kept up to date, for an agent of livekit-agents: ``Agent(tools=[assistant.toolset()])``.

        - ``session``: default: the session whose agent has the toolset. Tools with names that the agent has already are left out.
          Outside of a job, an agent with further toolsets needs it: otherwise the framework refuses tools with equal names.
        - ``report_progress``: passes the tools' progress on to ``RunContext.update``, whose first text the model takes for the
          result.
        """
        from .agents import RoomToolset

        return RoomToolset(self, session=session, report_progress=report_progress, id=id)

    async def _call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        turn: int | None,
        to: str | None,
        timeout: float | None,
        owner_wait: float | None,
        on_progress: OnProgress | None,
        meta: Mapping[str, Any] | None,
        model: bool,
    ) -> JsonObject:
        self._check_loop()
        if not isinstance(arguments, Mapping):
            raise TypeError(f"the arguments must be a dictionary, not {type(arguments).__name__}")
        check_limits(timeout=timeout, wait={"owner_wait": owner_wait})
        check_plain("`on_progress`", on_progress)
        raw = {"arguments": to_json_text(_plain(arguments), "arguments")}
        meta = with_span(meta)
        if meta is not None:
            raw["meta"] = to_json_text(_plain(meta), "meta")
        driver = self._driver
        _require_session(driver)
        call = _Call(self._loop.create_future(), tool, timeout, on_progress)
        limits = present(timeoutMs=milliseconds(timeout), ownerWaitMs=milliseconds(owner_wait))
        try:
            name = driver.call({"tool": tool, "model": model, **present(to=to, turn=turn), **limits}, raw, call)
        except ValueError as error:
            raise TypeError(str(error)) from None  # the core cannot hold the arguments
        try:
            return await call.done
        except asyncio.CancelledError:
            driver.input({"type": "cancel", "id": name})
            raise


class Turn:
    """One reply of the model. In a ``with`` statement, it ends at the end of the block."""

    def __init__(self, assistant: Assistant, turn: int) -> None:
        self._assistant = assistant
        self._turn = turn

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] = {},
        *,
        to: str | None = None,
        timeout: float | None = None,
        owner_wait: float | None = None,
        on_progress: OnProgress | None = None,
        meta: Mapping[str, Any] | None = None,
        model: bool = False,
    ) -> JsonObject:
        """Calls a tool as part of the turn: see ``Assistant.call``."""
        turn = self._turn
        return await self._assistant._call(tool, arguments, turn, to, timeout, owner_wait, on_progress, meta, model)

    def barge_in(self) -> None:
        """Ends the turn because the user interrupted: each open call settles at once, as its tool specifies."""
        self._end("barge_in")

    def end(self) -> None:
        """Ends the turn: it accepts no further calls. Open calls go on."""
        self._end("turn_end")

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _end(self, how: str) -> None:
        self._assistant._check_loop()
        self._assistant._driver.input({"type": how, "turn": self._turn})


class _Call:
    """A call that is open."""

    def __init__(
        self, done: asyncio.Future[JsonObject], tool: str, timeout: float | None, on_progress: OnProgress | None
    ) -> None:
        self.done = done
        self._timeout = timeout
        self.wants_progress = on_progress is not None
        self._tool = tool
        self._on_progress = on_progress

    def settled(self, result: JsonObject) -> None:
        if self.done.done():
            return
        if "error" in result:
            error = result["error"]
            if error["kind"] == "limit":  # the core's text is in milliseconds
                most = f"{error['limitMs'] / 1000:g}"
                message = f"`timeout` is {self._timeout}; it must be a number of seconds from 0.001 to {most}"
                error = {**error, "message": message}
            self.done.set_exception(call_error(error))
        else:
            self.done.set_result(result["value"])

    def lost(self, message: str) -> None:
        if not self.done.done():
            self.done.set_exception(closed_error(message, True))

    def progress(self, event: Event) -> None:
        if self._on_progress is None:
            return
        try:
            self._on_progress(Progress(event["status"], event.get("message"), event.get("content")))
        except Exception:
            logger.exception('on_progress of "%s" raised', self._tool)


def _require_session(driver: Driver) -> None:
    try:
        driver.require_session()
    except RuntimeError as error:
        raise closed_error(str(error), False) from None


def _plain(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return mapping if isinstance(mapping, dict) else dict(mapping)


def _describe(tool: JsonObject) -> ToolDescription:
    return ToolDescription(
        tool["name"],
        tool["description"],
        tool.get("inputSchema", {"type": "object"}),
        tool.get("title"),
        tool.get("destructive"),
        tool.get("idempotent"),
        tool.get("readOnly"),
    )
