"""The tools of a room for an agent of livekit-agents (1.8.9 or later)."""

from __future__ import annotations

import asyncio
import json
import logging
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeAlias

try:
    from livekit.agents import Agent, AgentSession, RunContext, get_job_context, llm
    from livekit.agents.llm.async_toolset import AsyncToolset
except ImportError as error:
    raise ImportError('`toolset` needs livekit-agents 1.8.9 or later: pip install "toolbridge[agents]"') from error
from livekit.agents.utils import is_given, shortuuid
from livekit.agents.voice import SpeechHandle

from ._assistant import Assistant, Late, ModelTool, Progress, Turn
from ._json import JsonObject
from ._vocabulary import Ambiguous, CallError, Detached

logger = logging.getLogger("toolbridge")

_RawTool: TypeAlias = "llm.RawFunctionTool[..., Any]"

#: What the names of the framework's own functions begin with.
_FRAMEWORK = "lk_agents_"


class ToolFailed(llm.ToolError):
    """A call has no value. The model reads the tool's own words, or what happened and what to do."""

    def __init__(self, error: CallError, text: str | None = None) -> None:
        super().__init__(text or error.for_model or str(error))
        self.code = error.code
        self.may_have_run = error.may_have_run


class RoomToolset(AsyncToolset):
    """The tools that can be called in the room, as they are now: made by ``Assistant.toolset``.

    - If several clients offer a tool, it has a further argument with their identities. If they describe it differently, each has
      its own, with the name ``owner__tool``.
    - Names, keys and schemas are those of ``Assistant.model_tools``, which no model's API refuses.
    - A tool whose name another tool of the agent has is left out.
    - If the user interrupts the speech in which a tool was called, that is a barge-in. The result of a tool that goes on is
      inserted into the chat when it arrives.
    - Calls belong to the session: they go on when another agent takes over, and it gets their results.
    """

    def __init__(
        self,
        assistant: Assistant,
        *,
        session: AgentSession[Any] | None = None,
        report_progress: bool = False,
        id: str | None = None,
    ) -> None:
        # The framework drops one of two toolsets with the same id.
        super().__init__(id=id or shortuuid("toolbridge_"))
        self._assistant = assistant
        self._session = session
        self._report_progress = report_progress
        self._made: dict[str, tuple[object, _RawTool]] = {}
        self._is_listing = False
        self._turns: weakref.WeakKeyDictionary[SpeechHandle, Turn] = weakref.WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stops: list[Callable[[], None]] = []
        #: The sessions that use it and are not closed.
        self._sessions: list[AgentSession[Any]] = []
        #: The agents to which a later result was promised.
        self._promised: weakref.WeakSet[Agent] = weakref.WeakSet()

    @property
    def tools(self) -> Sequence[llm.Tool | llm.Toolset]:
        if self._is_listing:
            return []  # another toolset that wraps this one is asked for its names
        self._is_listing = True
        try:
            taken = self._taken()
        finally:
            self._is_listing = False
        is_realtime = self._is_realtime()
        made: dict[str, tuple[object, _RawTool]] = {}
        shown: list[llm.Tool | llm.Toolset] = []
        for found in self._assistant.model_tools():
            key, name = (found, is_realtime), found.name
            before = self._made.get(name)
            # A tool that has not changed stays the same object, by which the framework recognizes it.
            made[name] = before if before is not None and before[0] == key else (key, self._make(found, is_realtime))
            if name not in taken and not name.startswith(_FRAMEWORK):
                shown.append(made[name][1])
        self._made = made
        return shown

    def _attach_activity(self, *, activity: Any, session: AgentSession[Any]) -> None:
        """The framework calls this before ``setup``, for each agent that begins to use the toolset."""
        super()._attach_activity(activity=activity, session=session)
        # Not the activity of one agent: the framework would cancel the calls at a handoff.
        self._executor.set_owning_activity(None)
        self._session = session
        if session not in self._sessions:
            self._sessions.append(session)
            session.once("close", lambda _: self._leave(session))

    async def setup(self) -> RoomToolset:
        if not self._stops:
            self._stops = [
                self._assistant.on("tools_changed", lambda _: self._start(self._update())),
                self._assistant.on("late_result", lambda _: self._start(self._insert_late())),
            ]
        return self

    async def aclose(self) -> None:
        """Ends the calls, unless a session goes on: the framework calls this for each agent that ends."""
        if self._sessions:
            return
        for stop in self._stops:
            stop()
        self._stops = []
        await super().aclose()
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()

    def _leave(self, session: AgentSession[Any]) -> None:
        self._sessions.remove(session)
        self._start(self.aclose())

    def _find_session(self) -> AgentSession[Any] | None:
        if self._session is None:
            job = get_job_context(required=False)
            try:
                self._session = None if job is None else job.primary_session
            except RuntimeError:
                pass  # it has not begun
        return self._session

    def _taken(self) -> set[str]:
        """The names of the agent's other tools. Of several toolsets of rooms, the first keeps a name."""
        session = self._find_session()
        if session is None:
            return set()
        agent = _current_agent(session)
        flat = list(_flat([*session.tools, *(() if agent is None else agent.tools)]))
        before = flat[: flat.index(self)] if self in flat else flat
        others = [it for it in flat if not isinstance(it, RoomToolset)]
        rooms = [tool for it in before if isinstance(it, RoomToolset) for tool in it.tools]
        return {*llm.ToolContext(others).function_tools, *llm.ToolContext(rooms).function_tools}

    def _make(self, found: ModelTool, is_realtime: bool) -> _RawTool:
        name = found.name
        schema, owner = _with_owner(found)
        raw: JsonObject = {"name": name, "description": found.description, "parameters": schema}
        if not is_realtime:
            # OpenAI's Responses API takes each schema for a strict one unless it says that it is not. Its realtime API knows no such field.
            raw["strict"] = False

        async def run(ctx: RunContext[Any], raw_arguments: dict[str, object]) -> str:
            arguments = dict(raw_arguments)
            to = arguments.pop(owner, None) if owner is not None else None
            return await self._call(ctx, name, arguments, to)

        return llm.function_tool(run, raw_schema=raw, flags=llm.ToolFlag.CANCELLABLE)

    def _is_realtime(self) -> bool:
        session = self._find_session()
        agent = None if session is None else _current_agent(session)
        if session is None or agent is None:
            return False
        return isinstance(agent.llm if is_given(agent.llm) else session.llm, llm.RealtimeModel)

    async def _call(self, ctx: RunContext[Any], name: str, arguments: dict[str, object], to: object) -> str:
        self._session = ctx.session
        agent = ctx.session.current_agent
        speech = ctx.speech_handle
        turn = self._turn(speech)

        has_reported = False

        def report(progress: Progress) -> None:
            nonlocal has_reported
            if progress.message:
                has_reported = True
                self._start(ctx.update(progress.message))

        def ended(call: asyncio.Future[JsonObject]) -> None:
            # The framework tells only the agent that runs, such as an ``AgentTask`` for which the agent that called waits.
            if has_reported and not call.cancelled() and agent is not _current_agent(ctx.session) and _is_running(agent):
                error = call.exception()
                if error is None or isinstance(error, CallError):
                    items = _late_items(ctx.function_call.call_id, name, None if error else call.result(), error)
                    self._start(_insert(agent, items))

        call = asyncio.ensure_future(
            turn.call(
                name,
                arguments,
                to=to if isinstance(to, str) else None,
                model=True,
                on_progress=report if self._report_progress else None,
            )
        )
        call.add_done_callback(ended)
        try:
            if speech.allow_interruptions:
                await speech.wait_if_not_interrupted([call])
                if speech.interrupted and not call.done():
                    turn.barge_in()
            return json.dumps(await call, ensure_ascii=False)
        except Detached:
            self._promised.add(agent)
            return "The tool goes on, and its result comes later."
        except Ambiguous as error:
            raise ToolFailed(error, self._choose_owner(name, error)) from error
        except CallError as error:
            raise ToolFailed(error) from error
        finally:
            call.cancel()

    def _choose_owner(self, name: str, error: Ambiguous) -> str:
        """Says which clients offer a tool, by the argument that the model has."""
        owner = next((_with_owner(it)[1] for it in self._assistant.model_tools() if it.name == name), None)
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
        agent = None if session is None else _current_agent(session)
        if agent is not None and self._is_realtime():
            await agent.update_tools(list(agent.tools))

    async def _insert_late(self) -> None:
        """Inserts late results into the chat of the agent that runs, and of those that wait for it and were promised one."""
        session = self._find_session()
        current = None if session is None else _current_agent(session)
        late = [] if current is None else self._assistant.late_results()
        if current is None or not late:
            return
        tools = self._assistant.model_tools()
        items = [item for it in late for item in _late_items(it.call, _name_of(it, tools), it.value, it.error)]
        for agent in {current, *filter(_is_running, self._promised)}:
            await _insert(agent, items)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("the tools of the room cannot be passed on", exc_info=task.exception())


def _flat(tools: Sequence[llm.Tool | llm.Toolset]) -> Iterator[llm.Tool | RoomToolset]:
    """The tools, and those of toolsets within toolsets. The toolsets of rooms stay what they are."""
    for tool in tools:
        if isinstance(tool, RoomToolset) or not isinstance(tool, llm.Toolset):
            yield tool
        else:
            yield from _flat(tool.tools)


def _current_agent(session: AgentSession[Any]) -> Agent | None:
    try:
        return session.current_agent
    except RuntimeError:
        return None  # the session has not begun, or is over


def _is_running(agent: Agent) -> bool:
    """Whether an agent runs, or waits for an ``AgentTask``."""
    try:
        return agent.session is not None
    except RuntimeError:
        return False


def _name_of(late: Late, tools: list[ModelTool]) -> str:
    """The name of a tool for a model, also of one that is gone."""
    names = (it.name for it in tools if it.tool == late.tool and (late.owner is None or late.owner in it.owners))
    return next(names, late.tool.replace(".", "__"))


def _with_owner(tool: ModelTool) -> tuple[JsonObject, str | None]:
    """The parameters of a tool, and the parameter that names its owner if there are several."""
    schema = tool.parameters
    if len(tool.owners) < 2:
        return schema, None
    owner = "owner"
    while owner in schema["properties"]:
        owner += "_"
    about = {"type": "string", "enum": sorted(tool.owners), "description": "The participant that runs the tool"}
    properties, required = {**schema["properties"], owner: about}, [*schema.get("required", ()), owner]
    return {**schema, "properties": properties, "required": required}, owner


async def _insert(agent: Agent, items: list[llm.ChatItem]) -> None:
    chat = agent.chat_ctx.copy()
    chat.insert(items)
    await agent.update_chat_ctx(chat, exclude_invalid_function_calls=False)


def _late_items(call: str, name: str, value: Any, error: CallError | None) -> list[llm.ChatItem]:
    call_id = f"{call}_late"
    output = str(ToolFailed(error)) if error is not None else json.dumps(value, ensure_ascii=False)
    return [
        llm.FunctionCall(call_id=call_id, name=name, arguments="{}"),
        llm.FunctionCallOutput(call_id=call_id, name=name, output=output, is_error=error is not None),
    ]
