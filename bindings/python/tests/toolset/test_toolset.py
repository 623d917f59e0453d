# mypy: ignore-errors
"""The toolset for livekit-agents, with a scripted model and rooms in memory. Needs livekit-agents."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from memory import Ends, in_loop
from toolbridge import ToolContext, tool

pytest.importorskip("livekit.agents")
sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tests/peers/agents"))

import forward
from livekit.agents import Agent, AgentSession, AgentTask, RunContext, function_tool
from livekit.agents.llm import Toolset


class Script(forward.Script):
    """The scripted model, which remembers the names of the tools that it was given."""

    names = ()

    def chat(self, *, tools=None, **more):
        self.names = [it.info.name for it in tools or [] if not it.info.name.startswith("lk_agents_")]
        return super().chat(tools=tools, **more)


def new_session(**more):
    return AgentSession(llm=Script(), vad=None, turn_handling={"turn_detection": "manual"}, **more)


def calls(*named):
    return json.dumps([{"tool": name, "arguments": arguments} for name, arguments in named])


async def outputs(session, *named):
    """Lets the model ask for calls, and returns what it reads of them."""
    result = await session.run(user_input=calls(*named))
    return [it.item.output for it in result.events if it.type == "function_call_output"]


def read_of(agent, name):
    """What the chat of an agent has of a tool's results."""
    return [it.output for it in agent.chat_ctx.items if it.type == "function_call_output" and it.name == name]


async def until(holds):
    while not holds():
        await asyncio.sleep(0.01)


async def echo(text: str) -> str:
    """Returns the text."""
    return text


async def get_battery() -> float:
    """Returns the charge."""
    return 0.8


class Steps:
    """A tool that reports progress, and goes on until it may end."""

    def __init__(self):
        self.has_begun, self.go = asyncio.Event(), asyncio.Event()
        self.stopped = None

    async def steps(self, cx: ToolContext) -> str:
        """Works in steps."""
        cx.progress("begun")
        self.has_begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.stopped = cx.stop_reason
            raise
        return "done"

    @tool(barge_in="report")
    async def goes_on(self) -> str:
        """Goes on when the user interrupts."""
        self.has_begun.set()
        await self.go.wait()
        return "late"


class Ask(AgentTask[str]):
    def __init__(self, tools=()):
        super().__init__(instructions="task", tools=list(tools))
        self.entered = asyncio.Event()

    async def on_enter(self):
        self.entered.set()


class Asking(Agent):
    """An agent that has a tool which awaits a task, and one that hands over to another agent."""

    def __init__(self, tools, task=None, next_agent=None):
        super().__init__(instructions="first", tools=tools)
        self.task, self.next_agent = task, next_agent

    @function_tool
    async def ask(self, ctx: RunContext):
        """Asks."""
        return await self.task

    @function_tool
    async def transfer(self, ctx: RunContext):
        """Hands over."""
        return self.next_agent, "transferred"


@in_loop
async def test_late_result_arrives_after_a_task_with_the_same_toolset() -> None:
    steps = Steps()
    async with Ends([steps.goes_on]) as ends:
        session = new_session()
        toolset = ends.bot.toolset()
        task = Ask([toolset])
        agent = Asking([toolset], task)
        await session.start(agent)
        asked = session.run(user_input=calls(("ask", {})))
        await task.entered.wait()
        task.complete("ok")
        await asked
        await until(lambda: read_of(agent, "ask"))
        session.generate_reply(user_input=calls(("goes_on", {})))
        await steps.has_begun.wait()
        await session.interrupt()
        steps.go.set()
        await until(lambda: '{"value": "late"}' in read_of(agent, "goes_on"))
        await session.aclose()


@in_loop
async def test_late_result_reaches_the_agent_that_waits_for_a_task() -> None:
    steps = Steps()
    async with Ends([steps.goes_on]) as ends:
        session = new_session()
        task = Ask()
        agent = Asking([ends.bot.toolset()], task)
        await session.start(agent)
        session.generate_reply(user_input=calls(("goes_on", {})))
        await steps.has_begun.wait()
        await session.interrupt()
        asked = session.run(user_input=calls(("ask", {})))
        await task.entered.wait()
        steps.go.set()
        await until(lambda: '{"value": "late"}' in read_of(task, "goes_on"))
        task.complete("ok")
        await asked
        assert '{"value": "late"}' in read_of(agent, "goes_on")
        await session.aclose()


@in_loop
async def test_call_that_reports_progress_reaches_the_agent_that_waits_for_a_task() -> None:
    steps = Steps()
    async with Ends([steps.steps]) as ends:
        session = new_session()
        task = Ask()
        agent = Asking([ends.bot.toolset(report_progress=True)], task)
        await session.start(agent)
        await outputs(session, ("steps", {}))
        asked = session.run(user_input=calls(("ask", {})))
        await task.entered.wait()
        steps.go.set()
        await until(lambda: '{"value": "done"}' in read_of(agent, "steps"))
        task.complete("ok")
        await asked
        assert read_of(agent, "steps").count('{"value": "done"}') == 1
        await session.aclose()


@pytest.mark.parametrize("where", ["both agents", "the first agent", "the session"])
@in_loop
async def test_call_goes_on_at_a_handoff_and_its_result_reaches_the_next_agent(where: str) -> None:
    steps = Steps()
    async with Ends([steps.steps, echo]) as ends:
        toolset = ends.bot.toolset(report_progress=True)
        session = new_session(tools=[toolset] if where == "the session" else [])
        second = Agent(instructions="second", tools=[toolset] if where == "both agents" else [])
        await session.start(Asking([] if where == "the session" else [toolset], next_agent=second))
        await outputs(session, ("steps", {}), ("transfer", {}))
        await until(lambda: session.current_agent is second)
        steps.go.set()
        await until(lambda: '{"value": "done"}' in read_of(second, "steps"))
        assert steps.stopped is None
        if where != "the first agent":
            assert await outputs(session, ("echo", {"text": "a"})) == ['{"value": "a"}']
        await session.aclose()


@in_loop
async def test_close_of_the_session_stops_its_calls() -> None:
    steps = Steps()
    async with Ends([steps.steps]) as ends:
        session = new_session()
        toolset = ends.bot.toolset(report_progress=True)
        await session.start(Agent(instructions="x", tools=[toolset]))
        await outputs(session, ("steps", {}))
        await session.aclose()
        await until(lambda: steps.stopped is not None)
        # The next session can use it.
        session = new_session()
        await session.start(Agent(instructions="x", tools=[toolset]))
        steps.go.set()
        assert "begun" in (await outputs(session, ("steps", {})))[0]
        await session.aclose()


@in_loop
async def test_model_cancels_a_call() -> None:
    steps = Steps()
    async with Ends([steps.steps]) as ends:
        session = new_session()
        agent = Agent(instructions="x", tools=[ends.bot.toolset(report_progress=True)])
        await session.start(agent)
        await outputs(session, ("steps", {}))
        (call,) = [it.call_id for it in agent.chat_ctx.items if it.type == "function_call"]
        await outputs(session, ("lk_agents_cancel_task", {"call_id": call}))
        await until(lambda: steps.stopped == "caller")
        await session.aclose()


class Own(Agent):
    @function_tool
    async def echo(self, ctx: RunContext, text: str) -> str:
        """Is the agent's own."""
        return "mine"


@function_tool(name="echo")
async def nested_echo(text: str) -> str:
    """Is the agent's own, in a toolset."""
    return "nested"


class Wrapping(Toolset):
    """Shows the tools of another toolset."""

    def __init__(self, inner):
        super().__init__(id="wrapping")
        self._inner = inner

    @property
    def tools(self):
        return list(self._inner.tools)


COMPOSED = {
    "alone": (lambda it: Agent(instructions="x", tools=[it]), "a"),
    "nested": (lambda it: Agent(instructions="x", tools=[Toolset(id="a", tools=[it])]), "a"),
    "nested twice": (lambda it: Agent(instructions="x", tools=[Toolset(id="b", tools=[Toolset(id="a", tools=[it])])]), "a"),
    "wrapped": (lambda it: Agent(instructions="x", tools=[Wrapping(it)]), "a"),
    "own tool": (lambda it: Own(instructions="x", tools=[it]), "mine"),
    "own tool, nested": (lambda it: Own(instructions="x", tools=[Toolset(id="a", tools=[it])]), "mine"),
    "other toolset": (lambda it: Agent(instructions="x", tools=[it, Toolset(id="a", tools=[nested_echo])]), "nested"),
}


@pytest.mark.parametrize("is_given", [True, False], ids=["session given", "no job"])
@pytest.mark.parametrize("how", COMPOSED)
@in_loop
async def test_toolset_can_be_composed(how: str, is_given: bool) -> None:
    if how == "other toolset" and not is_given:
        return  # the framework looks for equal names before it says which session there is
    compose, expected = COMPOSED[how]
    async with Ends([echo]) as ends:
        session = new_session()
        await session.start(compose(ends.bot.toolset(session=session if is_given else None)))
        (output,) = await outputs(session, ("echo", {"text": "a"}))
        assert output in (expected, json.dumps({"value": expected}))
        await session.aclose()


@in_loop
async def test_first_of_two_rooms_keeps_a_name() -> None:
    async def other_echo(text: str) -> str:
        """Returns another text."""
        return "other"

    async with Ends([echo]) as first, Ends([tool(name="echo")(other_echo), get_battery]) as second:
        session = new_session()
        toolsets = [first.bot.toolset(session=session), second.bot.toolset(session=session)]
        agent = Agent(instructions="x", tools=toolsets)
        await session.start(agent)
        assert await outputs(session, ("echo", {"text": "a"})) == ['{"value": "a"}']
        assert session.llm.names == ["echo", "get_battery"]
        first.app.offer([])
        await until(lambda: not first.bot.tools())
        assert await outputs(session, ("echo", {"text": "a"})) == ['{"value": "other"}']
        await agent.update_tools(list(agent.tools))
        assert len(agent.tools) == 2
        await session.aclose()


@in_loop
async def test_tools_of_a_client_that_reconnects_stay_and_its_calls_wait() -> None:
    async with Ends([echo]) as ends:
        session = new_session()
        await session.start(Agent(instructions="x", tools=[ends.bot.toolset()]))
        ends.phone.lose()
        gone = asyncio.Event()
        ends.agent.on("participant_disconnected", lambda _: gone.set())
        ends.phone._gone()
        await gone.wait()
        called = asyncio.create_task(outputs(session, ("echo", {"text": "a"})))
        await until(lambda: session.llm.names == ["echo"])
        ends.phone._gone = lambda: None  # it was announced already
        ends.phone.restore(rejoins=True)
        assert await called == ['{"value": "a"}']
        await session.aclose()
