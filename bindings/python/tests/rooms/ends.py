"""What the tests in real rooms use: tokens, toolbridge's command line, and rooms of LiveKit's SDK.

They need LIVEKIT_URL, LIVEKIT_API_KEY and LIVEKIT_API_SECRET (`scripts/parts livekit-server with …`), and TOOLBRIDGE, the path of the command
line. Without them they are skipped, and fail with TOOLBRIDGE_REQUIRE_PARTS=1.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from livekit import rtc

NEEDED = ("LIVEKIT_URL", "LIVEKIT_API_KEY", "LIVEKIT_API_SECRET", "TOOLBRIDGE")

#: The tools of the clients over the command line.
TOOLS = Path(__file__).with_name("tools.toml")


def require_parts(*more: str) -> None:
    """Skips the module if a part is missing."""
    missing = [name for name in (*NEEDED, *more) if not os.environ.get(name)]
    if missing:
        text = f"missing: {', '.join(missing)}"
        if os.environ.get("TOOLBRIDGE_REQUIRE_PARTS") == "1":
            raise RuntimeError(text)
        pytest.skip(text, allow_module_level=True)


def fresh_room() -> str:
    """A name that no other test uses."""
    return f"room-{secrets.token_hex(6)}"


def token(room: str, identity: str, role: str | None = None, **grants: bool) -> str:
    """A token. ``role`` is an attribute."""
    now = int(time.time())
    video = {"room": room, "roomJoin": True, "canPublish": True, "canSubscribe": True, "canPublishData": True}
    claims: dict[str, Any] = {
        "iss": os.environ["LIVEKIT_API_KEY"],
        "sub": identity,
        "nbf": now - 10,
        "exp": now + 600,
        "video": {**video, "canUpdateOwnMetadata": False, **grants},
    }
    if role is not None:
        claims["attributes"] = {"toolbridge.role": role}
    text = ".".join(_part(json.dumps(it).encode()) for it in ({"alg": "HS256", "typ": "JWT"}, claims))
    digest = hmac.new(os.environ["LIVEKIT_API_SECRET"].encode(), text.encode(), hashlib.sha256).digest()
    return f"{text}.{_part(digest)}"


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


async def connect(room: rtc.Room, name: str, identity: str, role: str | None, **grants: bool) -> None:
    options = rtc.RoomOptions(auto_subscribe=False, dynacast=False)
    await room.connect(os.environ["LIVEKIT_URL"], token(name, identity, role, **grants), options)


@asynccontextmanager
async def dev_server() -> AsyncIterator[dict[str, str]]:
    """Runs `toolbridge dev`. The value is the environment of programs that use it."""
    key = {"LIVEKIT_API_KEY": "devkey", "LIVEKIT_API_SECRET": "secret"}
    child = await asyncio.create_subprocess_exec(
        os.environ["TOOLBRIDGE"], "dev", "--port", "0", stdout=asyncio.subprocess.PIPE, env={**os.environ, **key}
    )
    assert child.stdout is not None
    try:
        found = None
        while found is None:
            line = (await child.stdout.readline()).decode()
            assert line, "toolbridge dev did not start"
            found = re.search(r"LIVEKIT_URL=(\S+)", line)
        yield {"LIVEKIT_URL": found[1], **key}
    finally:
        child.terminate()
        await child.communicate()  # reads what it has printed since


class Program:
    """`toolbridge assistant` or `toolbridge client`, in an ``async with`` statement."""

    def __init__(self, *args: str) -> None:
        self._args = args
        self._lines: list[dict[str, Any]] = []
        self._changed = asyncio.Condition()
        self._id = 0

    async def __aenter__(self) -> Program:
        pipe = asyncio.subprocess.PIPE
        program = os.environ["TOOLBRIDGE"]
        self._child = await asyncio.create_subprocess_exec(
            program, *self._args, stdin=pipe, stdout=pipe, limit=64 * 1024 * 1024
        )
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        if self._child.returncode is None:
            self._child.terminate()
        await self._child.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._child.stdout is not None
        while line := await self._child.stdout.readline():
            # An assistant prints nothing else than objects, a client nothing else than texts.
            async with self._changed:
                text = line.decode()
                self._lines.append(json.loads(text) if text.startswith("{") else {"text": text.rstrip()})
                self._changed.notify_all()

    async def line(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Returns the first line that matches, also one that was printed before."""
        async with self._changed:
            while True:
                for line in self._lines:
                    if matches(line):
                        return line
                await self._changed.wait()

    def say(self, command: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{json.dumps(command)}\n".encode())

    def begin(self, tool: str, arguments: Any = {}, **more: Any) -> int:
        """Starts a call, and returns its id."""
        self._id += 1
        self.say({"type": "call", "id": self._id, "tool": tool, "arguments": arguments, **more})
        return self._id

    async def result(self, id: int) -> dict[str, Any]:
        return await self.line(lambda line: line.get("type") == "result" and line["id"] == id)

    async def call(self, tool: str, arguments: Any = {}, **more: Any) -> dict[str, Any]:
        return await self.result(self.begin(tool, arguments, **more))

    async def progress(self, id: int, message: str | None = None) -> None:
        """Returns when the call has reported this. It must not end before."""

        def matches(line: dict[str, Any]) -> bool:
            is_it = line.get("type") == "progress" and (message is None or line.get("message") == message)
            return bool(line.get("id") == id and (is_it or line.get("type") == "result"))

        line = await self.line(matches)
        assert line["type"] == "progress", f"the call has ended: {line}"
