"""An ACP client over the official SDK, which drives an agent by a script: see ../README.md.

client.py SCRIPT COMMAND [ARGUMENTS]
"""

import asyncio
import json
import os
import sys

from acp import PROTOCOL_VERSION, RequestError, connect_to_agent, text_block
from acp.schema import AllowedOutcome, ClientCapabilities, DeniedOutcome, RequestPermissionResponse
from acp.schema import AcceptElicitationResponse, DeclineElicitationResponse

SCRIPT = json.loads(sys.argv[1])


def shown(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True) if hasattr(model, "model_dump") else model


def show(event, **fields):
    print(json.dumps({"event": event, **{name: shown(value) for name, value in fields.items()}}), flush=True)


class Editor:
    def on_connect(self, agent):
        self.agent = agent

    async def session_update(self, session_id, update, **_):
        show("update", sessionId=session_id, update=update)
        if SCRIPT.get("cancelOn") is not None and getattr(update, "status", None) == SCRIPT["cancelOn"]:
            show("cancelling")
            await self.agent.cancel(session_id)

    async def request_permission(self, session_id, tool_call, options, **_):
        show("permission", toolCall=tool_call, options=[shown(option) for option in options])
        wanted = SCRIPT.get("permission")
        if wanted == "silent":
            await asyncio.Event().wait()
        for option in options:
            if wanted in (option.kind, option.option_id):
                outcome = AllowedOutcome(option_id=option.option_id, outcome="selected")
                return RequestPermissionResponse(outcome=outcome)
        return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))

    async def create_elicitation(self, message, mode, **_):
        show("elicitation", message=message, mode=mode)
        answer = SCRIPT["elicitation"]
        if answer["action"] == "accept":
            return AcceptElicitationResponse(action="accept", content=answer.get("content"))
        return DeclineElicitationResponse(action="decline")

    async def ext_method(self, method, params):
        raise RequestError.method_not_found(method)

    async def ext_notification(self, method, params):
        pass


async def attempt(event, request):
    try:
        result = await request
        show(event, result=result)
        return result
    except RequestError as error:
        show(event, error={"code": error.code, "message": str(error), "data": error.data})
        return None


async def main():
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*sys.argv[2:], stdin=pipe, stdout=pipe, limit=64 << 20)
    agent = connect_to_agent(Editor(), child.stdin, child.stdout, use_unstable_protocol=True)
    can_ask = {"elicitation": {"form": {}, "url": {}}} if SCRIPT.get("elicitation") else {}
    abilities = ClientCapabilities.model_validate(can_ask)
    version = SCRIPT.get("version", PROTOCOL_VERSION)
    await attempt("initialized", agent.initialize(protocol_version=version, client_capabilities=abilities))
    for method, params in SCRIPT.get("requests", []):
        await attempt("answered", agent._conn.send_request(method, params))
    session = await attempt("session", agent.new_session(cwd=os.getcwd(), mcp_servers=[]))
    for text in SCRIPT.get("prompts", []) if session else []:
        await attempt("stopped", agent.prompt(session_id=session.session_id, prompt=[text_block(text)]))
    child.stdin.close()
    show("ended", code=await child.wait())


asyncio.run(main())
