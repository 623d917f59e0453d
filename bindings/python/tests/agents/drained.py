# mypy: ignore-errors
"""A worker of livekit-agents that is drained during calls: `drained.py ROOM`.

Its agent calls `hang` of the client `phone` by its model, and `wait` itself. When the first line arrives on the standard input, the
worker is drained; the calls outlive that, and the worker prints `drained`. Then it is closed. The job prints the outcome of each call.
"""

import asyncio
import json
import math
import os
import sys
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tests/peers/agents"))

from forward import Script
from livekit import api
from livekit.agents import Agent, AgentServer, AgentSession, JobContext, room_io
from toolbridge import Assistant, CallError

#: How long the worker waits for its jobs, in seconds.
DRAIN = 1


def say(**event):
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def job(context: JobContext):
    bridge = Assistant(context.room)
    session = AgentSession(llm=Script(), vad=None, turn_handling={"turn_detection": "manual"})
    agent = Agent(instructions="Use the tools of the room.", tools=[bridge.toolset()])
    await session.start(
        agent, room=context.room, room_options=room_io.RoomOptions(audio_input=False, audio_output=False)
    )
    await bridge.ready("phone")

    async def own_call():
        try:
            await bridge.call("wait", timeout=60)
        except CallError as error:
            say(own=type(error).__name__, may_have_run=error.may_have_run)

    async def turn():
        await session.run(user_input=json.dumps([{"tool": "hang", "arguments": {}}]))

    calls = [asyncio.create_task(own_call()), asyncio.create_task(turn())]

    async def ended():
        await asyncio.wait([calls[0]])

    context.add_shutdown_callback(ended)


async def main():
    registered = asyncio.Event()
    server = AgentServer(host="127.0.0.1", port=0, load_threshold=math.inf, load_fnc=lambda: 0.0)
    name = f"drained-{uuid.uuid4().hex}"
    server.rtc_session(job, agent_name=name)
    server.on("worker_registered", lambda *_: registered.set())
    running = asyncio.create_task(server.run(devmode=True))
    await asyncio.wait([asyncio.ensure_future(registered.wait()), running], return_when=asyncio.FIRST_COMPLETED)
    async with api.LiveKitAPI() as livekit:
        await livekit.agent_dispatch.create_dispatch(api.CreateAgentDispatchRequest(agent_name=name, room=sys.argv[1]))
    await asyncio.to_thread(sys.stdin.readline)
    try:
        await server.drain(timeout=DRAIN)
    except asyncio.TimeoutError:
        say(worker="drained")
    await asyncio.to_thread(sys.stdin.readline)
    await server.aclose()


if __name__ == "__main__":
    asyncio.run(main())
    os._exit(0)
