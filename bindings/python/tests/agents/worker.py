# mypy: ignore-errors
"""A worker of livekit-agents whose agent has the tools of the room: `worker.py '[]' ROOM`.

With JOIN_TOKEN, its assistant joins by itself with this token, in place of using the job's room.

The client `phone` says what happens: each result of its tool `next_turn` is a turn. Its tool `report` gets what the model saw.
The scripted model and the rest of the worker are those of `tests/peers/agents/forward.py`.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tests/peers/agents"))

import forward
from livekit.agents import Agent, AgentSession, JobContext, RunContext, function_tool, room_io
from toolbridge import Assistant


class Script(forward.Script):
    """The scripted model, which remembers the tools that it was given."""

    names: list[str] = []
    schemas: dict = {}
    #: Called when the model is asked for what it says about a result.
    answers = staticmethod(lambda: None)

    def chat(self, *, chat_ctx, tools=None, **more):
        found = [tool.info for tool in tools or []]
        Script.names = [info.raw_schema["name"] if hasattr(info, "raw_schema") else info.name for info in found]
        Script.schemas = {info.raw_schema["name"]: info.raw_schema for info in found if hasattr(info, "raw_schema")}
        if chat_ctx.items[-1].type == "function_call_output":
            Script.answers()
        return super().chat(chat_ctx=chat_ctx, tools=tools, **more)


class Helper(Agent):
    def __init__(self, tools):
        super().__init__(instructions="Use the tools of the room.", tools=tools)
        self.late = asyncio.Event()

    @function_tool
    async def own(self, context: RunContext):
        """Is the agent's own."""
        return "mine"

    async def update_chat_ctx(self, chat_ctx, **more):
        await super().update_chat_ctx(chat_ctx, **more)
        if any(item.type == "function_call_output" and item.call_id.endswith("_late") for item in chat_ctx.items):
            self.late.set()


async def have_owners(bridge, owners):
    """Returns when the tools have these owners."""
    changed = asyncio.Event()
    stop = bridge.on("tools_changed", lambda _: changed.set())
    try:
        while any(sorted(it.owner for it in bridge.tools() if it.tool.name == tool) != those for tool, those in owners.items()):
            await changed.wait()
            changed.clear()
    finally:
        stop()


async def job(context: JobContext):
    token = os.environ.get("JOIN_TOKEN")
    bridge = Assistant(context.room) if token is None else await Assistant.join(os.environ["LIVEKIT_URL"], token)
    session = AgentSession(llm=Script(), vad=None, turn_handling={"turn_detection": "manual"})
    tasks = []
    agent = Helper([bridge.toolset(report_progress=True)])
    await session.start(
        agent, room=context.room, room_options=room_io.RoomOptions(audio_input=False, audio_output=False)
    )
    await bridge.ready("phone")
    while True:
        turn = await bridge.call("next_turn", to="phone", timeout=60)
        if turn.get("done"):
            break
        if turn.get("late"):
            await agent.late.wait()
            outputs = [it for it in agent.chat_ctx.items if it.type == "function_call_output" and it.call_id.endswith("_late")]
            await bridge.call("report", {"late": [[it.name, it.output, it.is_error] for it in outputs]}, to="phone")
            continue
        await bridge.ready("phone", timeout=60)  # again: on a busy machine, the participant may have had to rejoin
        await have_owners(bridge, turn.get("owners", {}))
        stop = lambda: None
        if turn.get("progress"):
            # The tool ends after the model has answered its progress.
            Script.answers = lambda: tasks.append(asyncio.create_task(bridge.call("release", to="phone")))
        if turn.get("interrupt"):
            stop = bridge.on("progress", lambda event: session.interrupt())
        run = session.run(user_input=json.dumps(turn["calls"]))
        try:
            result = await run
            events = result.events
        finally:
            stop()
        outputs = [event.item for event in events if event.type == "function_call_output"]
        seen = {
            "outputs": [[it.name, it.is_error, it.output] for it in outputs],
            "tools": Script.names,
            "history": [item.name for item in agent.chat_ctx.items if item.type == "function_call"],
            "schema": Script.schemas.get("echo"),
        }
        await bridge.call("report", seen, to="phone")
    await bridge.aclose()


if __name__ == "__main__":
    forward.job = job
    asyncio.run(forward.main())
    # Not by the interpreter's own end: the SDK's threads may still call into it then, and abort the process.
    os._exit(0)
