"""An MCP host over the official SDK for Python: lists the tools of a server, calls them, and prints a JSON line for each step.

    python host.py stdio COMMAND [ARGUMENTS]
    python host.py http URL TOKEN

It speaks the newest protocol version that the server knows.
"""

import json
import os
import sys

import anyio
import httpx2
from mcp import MCPError
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client


def show(event, **fields):
    print(json.dumps({"event": event, **fields}), flush=True)


async def step(name, call):
    try:
        result = await call()
        show(name, result=result.model_dump(mode="json", by_alias=True, exclude_none=True))
    except MCPError as error:
        show(name, error=error.error.code, message=error.error.message)


async def names(client):
    return [tool.name for tool in (await client.list_tools()).tools]


async def stopped(client):
    """Calls the tool that runs until it is stopped, and stops it after its first progress."""
    reports = []
    with anyio.CancelScope() as scope:

        async def on_progress(progress, total, message):
            reports.append({"progress": progress, "total": total, "message": message})
            scope.cancel()

        await client.call_tool("hang", {}, progress_callback=on_progress)
    show("stopped", cancelled=scope.cancelled_caught)
    show("progress", progress=reports)


async def run(server):
    async with Client(server) as client:
        show("connected", protocol=client.protocol_version)
        show("tools", names=await names(client))
        await step("double", lambda: client.call_tool("double", {"n": 21}))
        await step("wrong", lambda: client.call_tool("double", {"n": "x"}))
        await step("unknown", lambda: client.call_tool("no_such_tool", {}))
        await stopped(client)
        async with client.listen(tools_list_changed=True) as changes:
            show("waiting")
            async for _ in changes:
                break
        show("changed", names=await names(client))
    show("closed")


async def main():
    kind, *where = sys.argv[1:]
    if kind == "stdio":
        await run(StdioServerParameters(command=where[0], args=where[1:], env=dict(os.environ)))
    else:
        headers = {"Authorization": f"Bearer {where[1]}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            await run(streamable_http_client(where[0], http_client=http))


anyio.run(main)
