"""An ACP agent over the official SDK. Each line of a prompt is a step: see ../README.md."""

import asyncio
import json
import os

from acp import RequestError, run_agent, schema, start_tool_call, text_block, tool_content, tool_diff_content
from acp import update_agent_message_text, update_agent_thought_text, update_tool_call
from acp.schema import AgentCapabilities, InitializeResponse, McpCapabilities, NewSessionResponse, PromptResponse

KINDS = ["allow_once", "allow_always", "reject_once"]


class Scripted:
    def on_connect(self, client):
        self.client, self.servers, self.cancelled = client, {}, {}

    async def initialize(self, protocol_version, client_capabilities=None, client_info=None, **_):
        http = os.environ.get("ACP_HTTP") == "1"
        return InitializeResponse(
            protocol_version=int(os.environ.get("ACP_VERSION", "1")),
            agent_capabilities=AgentCapabilities(mcp_capabilities=McpCapabilities(http=http)),
        )

    async def new_session(self, cwd, mcp_servers=None, **_):
        session = f"s{len(self.servers) + 1}"
        self.servers[session] = mcp_servers or []
        return NewSessionResponse(session_id=session)

    async def cancel(self, session_id, **_):
        if session_id in self.cancelled:
            self.cancelled[session_id].set()

    async def prompt(self, session_id, prompt, **_):
        if session_id not in self.servers:
            raise RequestError.invalid_params({"reason": "unknown session"})
        self.cancelled[session_id] = asyncio.Event()
        text = "\n".join(getattr(block, "text", "") for block in prompt)
        for line in filter(None, text.split("\n")):
            name, _, rest = line.partition(" ")
            step = getattr(self, "step_" + name.replace("-", "_"), None)
            if not step:
                raise RequestError.invalid_params({"reason": f"unknown step {name}"})
            reason = await step(session_id, rest)
            if name == "stop":
                return PromptResponse(stop_reason=reason)
            if self.cancelled[session_id].is_set():
                return PromptResponse(stop_reason="cancelled")
        return PromptResponse(stop_reason="end_turn")

    async def step_say(self, session, text):
        await self.client.session_update(session, update_agent_message_text(text))

    async def step_think(self, session, text):
        await self.client.session_update(session, update_agent_thought_text(text))

    async def step_update(self, session, text):
        params = {"sessionId": session, "update": json.loads(text)}
        await self.client._conn.send_notification("session/update", params)  # as it is, also if it is odd

    async def step_call(self, session, id):
        update, path = self.client.session_update, "/srv/app/main.rs"
        await update(session, start_tool_call(id, "Edit main.rs", kind="edit", status="pending"))
        places = [schema.ToolCallLocation(path=path, line=3)]
        await update(session, update_tool_call(id, status="in_progress", raw_input={"path": path}, locations=places))
        await update(session, update_tool_call(id, content=[tool_content(text_block("half done"))]))
        diff = tool_diff_content(path, "b\n", "a\n")
        await update(session, update_tool_call(id, status="completed", raw_output={"changed": 1}, content=[diff]))

    async def step_plan(self, session, _):
        entries = [schema.PlanEntry(content="Look around", priority="high", status="in_progress")]
        await self.client.session_update(session, schema.AgentPlanUpdate(session_update="plan", entries=entries))

    async def step_permit(self, session, kind):
        call = schema.ToolCallUpdate(
            tool_call_id="permit", title="Run the tests", kind=kind or "execute", raw_input={"command": "true"}
        )
        options = [schema.PermissionOption(option_id=f"o-{it}", name=f"Do {it}", kind=it) for it in KINDS]
        outcome = (await self.client.request_permission(session, call, options)).outcome
        await self.step_say(session, f"permit: {getattr(outcome, 'option_id', None) or outcome.outcome}")

    async def step_ask(self, session, _):
        form = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        params = {"mode": "form", "message": "Who are you?", "requestedSchema": form}
        answer = await self.raw(session, "elicitation/create", params)
        said = (answer.get("content") or {}).get("name", "")
        await self.step_say(session, f"ask: {answer.get('action') or answer.get('error')} {said}")

    async def step_request(self, session, text):
        method, _, params = text.partition(" ")
        answer = await self.raw(session, method, json.loads(params or "{}"))
        await self.step_say(session, f"request: {json.dumps(answer)}")

    async def step_servers(self, session, _):
        await self.step_say(session, json.dumps([it.model_dump(by_alias=True) for it in self.servers[session]]))

    async def step_wait(self, session, _):
        await self.cancelled[session].wait()

    async def step_deaf(self, *_):
        await asyncio.sleep(1e9)

    async def step_crash(self, *_):
        os._exit(3)

    async def step_junk(self, _, text):
        print(text, flush=True)

    async def step_stop(self, _, reason):
        return reason

    async def raw(self, session, method, params):
        try:
            return await self.client._conn.send_request(method, {"sessionId": session, **params})
        except RequestError as error:
            return {"error": error.code}


asyncio.run(run_agent(Scripted()))
