#!/usr/bin/env python3
"""A voice assistant of livekit-agents that calls the tools of the page in its room: page_client.ts.

pip install toolbridge[agents]    # or the wheel that `scripts/bindings python` prints, and livekit-agents
python3 examples/agent_worker.py dev    # server and key from LIVEKIT_URL, LIVEKIT_API_KEY and LIVEKIT_API_SECRET
"""
from livekit.agents import Agent, AgentServer, AgentSession, JobContext, cli
from toolbridge import Assistant

INSTRUCTIONS = "You help the person in front of a page. Use its tools; if a tool fails, say why."

server = AgentServer()


@server.rtc_session()
async def entrypoint(ctx: JobContext) -> None:
    bridge = Assistant(ctx.room)  # the job's own room: no second token
    bridge.on("not_admitted", lambda event: print(event["message"]))
    agent = Agent(instructions=INSTRUCTIONS, tools=[bridge.toolset()])
    session: AgentSession[None] = AgentSession(stt="deepgram/nova-3", llm="openai/gpt-5-mini", tts="cartesia/sonic-3")
    await session.start(agent, room=ctx.room)
    page = await ctx.wait_for_participant()
    await bridge.ready(page.identity)  # its tools are known
    await session.generate_reply(instructions="Say in one sentence what you can do on this page.")


if __name__ == "__main__":
    cli.run_app(server)
