# mypy: ignore-errors
"""The worker of examples/agent_worker.py with a scripted model in place of its models: `example_worker.py TURNS ROOM`.

Prints the outputs of each turn. The scripted model and the rest are those of `tests/peers/agents/forward.py`.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests/peers/agents")]

import agent_worker
import forward
from livekit.agents import AgentSession, get_job_context, room_io


class Scripted(AgentSession):
    def __init__(self, **_):
        super().__init__(llm=forward.Script(), vad=None, turn_handling={"turn_detection": "manual"})

    async def start(self, agent, *, room):
        options = room_io.RoomOptions(audio_input=False, audio_output=False)
        await super().start(agent, room=room, room_options=options)

    def generate_reply(self, *, instructions=None, **more):
        # Instructions are for a model: the turns follow in place of its reply.
        return super().generate_reply(**more) if instructions is None else self.turns()

    async def turns(self):
        for calls in json.loads(get_job_context().job.metadata):
            result = await self.run(user_input=json.dumps(calls))
            outputs = [it.item.output for it in result.events if it.type == "function_call_output"]
            forward.say("outputs", outputs=outputs)


# Also in the process of the job, which imports this module.
agent_worker.AgentSession = Scripted


async def job(context):
    await agent_worker.entrypoint(context)


if __name__ == "__main__":
    forward.job = job
    asyncio.run(forward.main())
    # Not by the interpreter's own end: the SDK's threads may still call into it then, and abort the process.
    os._exit(0)
