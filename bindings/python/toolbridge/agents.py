"""The tools of a room for an agent of livekit-agents (1.8.9 or later)."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from livekit.agents import AgentSession, RunContext, get_job_context, llm
from livekit.agents.utils import is_given
from livekit.agents.voice import SpeechHandle

from ._assistant import Assistant, Late, Progress, Turn
from ._json import JsonObject
from ._vocabulary import Ambiguous, CallError, Detached

logger = logging.getLogger("toolbridge")

_RawTool: TypeAlias = "llm.RawFunctionTool[..., Any]"

#: What the names of the framework's own functions begin with.
_FRAMEWORK = "lk_agents_"

#: What models accept as the name of a function.
_NAME = re.compile(r"[^A-Za-z0-9_-]")


class ToolFailed(llm.ToolError):
    """A call has no value. The model reads the tool's own words, or what happened and what to do."""

    def __init__(self, error: CallError, text: str | None = None) -> None:
        super().__init__(text or error.for_model or str(error))
        self.code = error.code
        self.may_have_run = error.may_have_run


class RoomToolset(llm.Toolset):
    """The tools that can be called in the room, as they are now: made by ``Assistant.toolset``.

    - If several clients offer a tool, it has a further argument with their identities.
    - A tool whose name another tool of the agent has is left out. Characters that models do not accept in names become ``_``.
    - If the user interrupts the speech in which a tool was called, that is a barge-in. The result of a tool that goes on is
      inserted into the chat when it arrives.
    """

    def __init__(
        self,
        assistant: Assistant,
        *,
        session: AgentSession[Any] | None = None,
        report_progress: bool = False,
        id: str = "toolbridge",
    ) -> None:
        super().__init__(id=id)
        self._assistant = assistant
        self._session = session
        self._report_progress = report_progress
        self._made: dict[str, tuple[str, _RawTool]] = {}
        self._turns: weakref.WeakKeyDictionary[SpeechHandle, Turn] = weakref.WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stops: list[Callable[[], None]] = []

    @property
    def tools(self) -> Sequence[llm.Tool | llm.Toolset]:
        offers: dict[str, list[Any]] = {}
        for offer in self._assistant.tools():
            offers.setdefault(offer.tool.name, []).append(offer)
        taken = self._taken()
        made: dict[str, tuple[str, _RawTool]] = {}
        # First those whose names need no change: `pay.bill` must not take that of `pay_bill`.
        for name, found in sorted(offers.items(), key=lambda offer: _NAME.search(offer[0]) is not None):
            shown = _NAME.sub("_", name)
            if shown in taken or shown.startswith(_FRAMEWORK):
                continue
            taken.add(shown)
            schema, owner = _schema(found)
            raw = {"name": shown, "description": found[0].tool.description, "parameters": schema}
            text = json.dumps(raw, sort_keys=True)
            before = self._made.get(name)
            # A tool that has not changed stays the same object, by which the framework recognizes it.
            made[name] = before if before is not None and before[0] == text else (text, self._make(name, raw, owner))
        self._made = made
        return [tool for _, tool in made.values()]

    async def setup(self) -> RoomToolset:
        if not self._stops:
            self._stops = [
                self._assistant.on("tools_changed", lambda _: self._start(self._update())),
                self._assistant.on("late_result", lambda _: self._start(self._insert_late())),
            ]
        return self

    async def aclose(self) -> None:
        for stop in self._stops:
            stop()
        self._stops = []
        for task in list(self._tasks):
            task.cancel()

    def _find_session(self) -> AgentSession[Any] | None:
        if self._session is None:
            job = get_job_context(required=False)
            try:
                self._session = None if job is None else job.primary_session
            except RuntimeError:
                pass  # it has not begun
        return self._session

    def _taken(self) -> set[str]:
        """The names of the other tools of the agent."""
        session = self._find_session()
        if session is None:
            return set()
        others: list[Any] = list(session.tools)
        try:
            others += session.current_agent.tools
        except RuntimeError:
            pass  # the session has not begun
        tools = llm.ToolContext([it for it in others if not isinstance(it, RoomToolset)])
        return set(tools.function_tools)

    def _make(self, name: str, raw: JsonObject, owner: str | None) -> _RawTool:
        async def run(ctx: RunContext[Any], raw_arguments: dict[str, object]) -> str:
            arguments = dict(raw_arguments)
            to = arguments.pop(owner, None) if owner is not None else None
            return await self._call(ctx, name, arguments, to)

        return llm.function_tool(run, raw_schema=raw, flags=llm.ToolFlag.CANCELLABLE)

    async def _call(self, ctx: RunContext[Any], name: str, arguments: dict[str, object], to: object) -> str:
        self._session = ctx.session
        speech = ctx.speech_handle
        turn = self._turn(speech)

        def report(progress: Progress) -> None:
            if progress.message:
                self._start(ctx.update(progress.message))

        call = asyncio.ensure_future(
            turn.call(
                name,
                arguments,
                to=to if isinstance(to, str) else None,
                on_progress=report if self._report_progress else None,
            )
        )
        try:
            if speech.allow_interruptions:
                await speech.wait_if_not_interrupted([call])
                if speech.interrupted and not call.done():
                    turn.barge_in()
            return json.dumps(await call, ensure_ascii=False)
        except Detached:
            return "The tool goes on, and its result comes later."
        except Ambiguous as error:
            raise ToolFailed(error, self._choose_owner(name, error)) from error
        except CallError as error:
            raise ToolFailed(error) from error
        finally:
            call.cancel()

    def _choose_owner(self, name: str, error: Ambiguous) -> str:
        """Says which clients offer a tool, by the argument that the model has."""
        _, owner = _schema([offer for offer in self._assistant.tools() if offer.tool.name == name])
        owners = ", ".join(json.dumps(it, ensure_ascii=False) for it in error.owners)
        what = "call it again" if owner is None else f"name one of them in the argument `{owner}`"
        return f"several clients offer it: {owners}; {what}. Nothing ran."

    def _turn(self, speech: SpeechHandle) -> Turn:
        """One turn for each reply of the model."""
        turn = self._turns.get(speech)
        if turn is None:
            turn = self._turns[speech] = self._assistant.turn()
            speech.add_done_callback(lambda _: turn.end())
        return turn

    async def _update(self) -> None:
        """Tells a realtime model of the new tools.

        Other models are given them at each reply. For these, ``update_tools`` would delete all calls of tools that are gone from
        the chat, also those of other tools than the room's.
        """
        session = self._find_session()
        if session is None:
            return
        try:
            agent = session.current_agent
        except RuntimeError:
            return  # the session has not begun, or is over
        if isinstance(agent.llm if is_given(agent.llm) else session.llm, llm.RealtimeModel):
            await agent.update_tools(list(agent.tools))

    async def _insert_late(self) -> None:
        session, late = self._find_session(), self._assistant.late_results()
        if session is None or not late:
            return
        agent = session.current_agent
        chat = agent.chat_ctx.copy()
        for result in late:
            chat.insert(_late_items(result))
        await agent.update_chat_ctx(chat, exclude_invalid_function_calls=False)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("the tools of the room cannot be passed on", exc_info=task.exception())


def _schema(offers: list[Any]) -> tuple[JsonObject, str | None]:
    """The parameters of a tool, and the one that names its owner if there are several."""
    schema = dict(offers[0].tool.parameters) if offers else {}
    schema.setdefault("properties", {})
    if len(offers) < 2:
        return schema, None
    owner = "owner"
    while owner in schema["properties"]:
        owner += "_"
    identities = sorted(offer.owner for offer in offers)
    about = {"type": "string", "enum": identities, "description": "The participant that runs the tool"}
    schema["properties"] = {**schema["properties"], owner: about}
    schema["required"] = [*schema.get("required", ()), owner]
    return schema, owner


def _late_items(late: Late) -> list[llm.ChatItem]:
    call_id = f"{late.call}_late"
    name = _NAME.sub("_", late.tool)
    failed = late.error is not None
    output = str(ToolFailed(late.error)) if late.error is not None else json.dumps(late.value, ensure_ascii=False)
    return [
        llm.FunctionCall(call_id=call_id, name=name, arguments="{}"),
        llm.FunctionCallOutput(call_id=call_id, name=name, output=output, is_error=failed),
    ]
