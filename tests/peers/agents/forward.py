"""An assistant of livekit-agents whose tools are an app's: it forwards their calls by LiveKit's RPC, as that framework's
documentation shows. It knows nothing of toolbridge.

    LIVEKIT_URL=ws://… LIVEKIT_API_KEY=… LIVEKIT_API_SECRET=… forward.py TURNS ROOM…

A worker under a name of its own. It dispatches itself to each room, where the app is already, and runs each job in a process of
its own, as workers do. A scripted model takes the place of a real one: TURNS is a JSON list of turns, each a list of calls
[{"tool": …, "arguments": {…}}, …] that the model asks for at once, before it answers with text.

Prints a line of JSON with an `event` and the `room` for

    ready     its session has begun
    rpc       a call by RPC has ended: method, ms; if it failed: code, message, data
    output    what the model is told of a call: turn, tool, is_error, length, digest; and output, up to 1,000 characters
    text      what the model says at the end of a turn: turn, text
    done      after the last turn

It stays until its standard input ends.
"""

import asyncio
import hashlib
import json
import math
import os
import sys
import threading
import time
import uuid

from livekit import api, rtc
from livekit.agents import (
    Agent,
    AgentServer,
    AgentSession,
    APIConnectOptions,
    JobContext,
    RunContext,
    ToolError,
    function_tool,
    get_job_context,
    llm,
    room_io,
)

RESPONSE_TIMEOUT = 5.0


def say(event, **more):
    # One write of less than 4 KiB: the processes of several jobs share the pipe.
    sys.stdout.write(json.dumps({"event": event, "room": get_job_context().room.name, **more}) + "\n")
    sys.stdout.flush()


def about(output):
    """What is printed of a text: it may be long."""
    more = {"output": output} if len(output) <= 1_000 else {}
    return {"length": len(output), "digest": hashlib.sha256(output.encode()).hexdigest(), **more}


async def forward(method, arguments):
    room = get_job_context().room
    began, more = time.monotonic(), {}
    try:
        return await room.local_participant.perform_rpc(
            destination_identity=next(iter(room.remote_participants)),
            method=method,
            payload=json.dumps(arguments),
            response_timeout=RESPONSE_TIMEOUT,
        )
    except rtc.RpcError as error:
        more = {"code": error.code, "message": error.message, "data": error.data}
        raise ToolError(f"{error.code} {error.message}") from error
    finally:
        say("rpc", method=method, ms=round((time.monotonic() - began) * 1e3, 1), **more)


class Forwarding(Agent):
    def __init__(self):
        super().__init__(instructions="Use the tools of the app.")

    @function_tool
    async def echo(self, context: RunContext, text: str):
        """Returns the text.

        Args:
            text: The text
        """
        return await forward("echo", {"text": text})

    @function_tool
    async def large(self, context: RunContext, bytes: int):
        """Returns so many bytes.

        Args:
            bytes: The size of the result
        """
        return await forward("large", {"bytes": bytes})

    @function_tool
    async def slow(self, context: RunContext, text: str):
        """Returns the text after three seconds.

        Args:
            text: The text
        """
        return await forward("slow", {"text": text})

    @function_tool
    async def fail(self, context: RunContext):
        """Fails."""
        return await forward("fail", {})

    @function_tool
    async def nothing(self, context: RunContext):
        """Is not there."""
        return await forward("nothing", {})


class Script(llm.LLM):
    """The model: a message of the user is the list of the calls that it asks for."""

    def chat(self, *, chat_ctx, tools=None, conn_options=APIConnectOptions(), **_):
        return Answer(self, chat_ctx=chat_ctx, tools=tools or [], conn_options=conn_options)


class Answer(llm.LLMStream):
    async def _run(self):
        last = self.chat_ctx.items[-1]
        if last.type == "message" and last.role == "user":
            delta = llm.ChoiceDelta(role="assistant", tool_calls=[
                llm.FunctionToolCall(
                    name=call["tool"], arguments=json.dumps(call["arguments"]), call_id=f"{last.id}-{at}"
                )
                for at, call in enumerate(json.loads(last.text_content))
            ])
        else:
            delta = llm.ChoiceDelta(role="assistant", content="That is all.")
        self._event_ch.send_nowait(llm.ChatChunk(id=uuid.uuid4().hex, delta=delta))


async def job(context: JobContext):
    turns = json.loads(context.job.metadata)
    session = AgentSession(llm=Script(), vad=None, turn_handling={"turn_detection": "manual"})
    await session.start(
        Forwarding(),
        room=context.room,
        room_options=room_io.RoomOptions(audio_input=False, audio_output=False),
    )
    await context.wait_for_participant()
    say("ready")
    for turn, calls in enumerate(turns):
        for event in (await session.run(user_input=json.dumps(calls))).events:
            if event.type == "function_call_output":
                output = event.item
                say("output", turn=turn, tool=output.name, is_error=output.is_error, **about(output.output))
            elif event.type == "message" and event.item.role == "assistant":
                say("text", turn=turn, text=event.item.text_content)
    say("done")


async def main():
    turns, *rooms = sys.argv[1:]
    over, registered = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def watch_stdin():
        while os.read(0, 4096):
            pass
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=watch_stdin, daemon=True).start()
    # A machine with other load must not make the worker refuse its jobs.
    server = AgentServer(host="127.0.0.1", port=0, load_threshold=math.inf, load_fnc=lambda: 0.0)
    name = f"forward-{uuid.uuid4().hex}"
    server.rtc_session(job, agent_name=name)
    server.on("worker_registered", lambda *_: registered.set())
    running = asyncio.create_task(server.run(devmode=True))
    await until(registered.wait(), running)
    async with api.LiveKitAPI() as livekit:
        for room in rooms:
            await livekit.agent_dispatch.create_dispatch(
                api.CreateAgentDispatchRequest(agent_name=name, room=room, metadata=turns)
            )
    await until(over.wait(), running)
    await server.aclose()


async def until(event, running):
    """Waits for an event while the worker runs."""
    await asyncio.wait([asyncio.ensure_future(event), running], return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
        sys.exit("the worker ended")


if __name__ == "__main__":
    asyncio.run(main())
    # Not by the interpreter's own end: the SDK's threads may still call into it then, and abort the process.
    os._exit(0)
