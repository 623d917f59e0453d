"""A client or an assistant for the matrix in ``bindings/js/test/rooms``: ``participant.py client``, or ``assistant``.

Each line of the input is ``{"id": 1, "do": "call", "args": […]}``, and each line of the output ``{"id": 1, "value": …}``, or with ``error``.
The tools, and what a call is given and returns, are those of ``tools.mjs`` and ``caller.mjs`` there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Union

from livekit import rtc
from toolbridge import Assistant, CallError, Client, ConsentRequest, ToolContext, ToolError, tool

ANY = {"type": "object"}

Function = Callable[..., Any]

#: The longest line of the input, in bytes.
LONGEST = 1024 * 1024


class Log:
    """A list whose entries can be waited for."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self._changed = asyncio.Event()

    def add(self, entry: Any) -> None:
        self.entries.append(entry)
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, matches: Callable[[Any], bool]) -> Any:
        while not any(map(matches, self.entries)):
            await self._changed.wait()
        return next(filter(matches, self.entries))


class Phone:
    """The tools of a client."""

    def __init__(self) -> None:
        self._notes = Log()

    def tools(self) -> list[Any]:
        def described(description: str, **options: Any) -> Callable[[Function], Function]:
            return tool(schema=ANY, description=description, **options)

        @described("Returns its arguments")
        async def echo(arguments: Any) -> Any:
            return arguments

        @described("Returns a text of this length")
        async def make(arguments: Any) -> Any:
            return {"text": "r" * arguments["size"]}

        @described("Returns the length of a text")
        async def length(arguments: Any) -> Any:
            return len(arguments["text"])

        @described("Fails")
        async def fail(_: Any) -> Any:
            raise ToolError("the watch is out of range", code="out_of_range")

        @described("Raises")
        async def broken(_: Any) -> Any:
            raise RuntimeError("secret")

        def is_number(arguments: Any) -> Union[bool, str]:
            return isinstance(arguments.get("n"), (int, float)) or "n: must be a number"

        @described("Wants a number", validate=is_number)
        async def strict(arguments: Any) -> Any:
            return arguments["n"]

        @described("Never ends")
        async def hang(arguments: Any) -> Any:
            self._notes.add(f'hang {arguments.get("id")}')
            try:
                await asyncio.Event().wait()
            finally:
                self._notes.add(f'stopped {arguments.get("id")}')

        @described("Reports progress")
        async def steps(_: Any, cx: ToolContext) -> Any:
            cx.progress("half")
            await self._until("go")
            return "done"

        @described("Notes a text")
        async def note(arguments: Any) -> Any:
            self._notes.add(arguments["what"])
            return {}

        @described("Waits for a note")
        async def until(arguments: Any) -> Any:
            await self._until(arguments["what"])
            return True

        # These are plain functions: each runs in a thread.
        @described("Deletes all files, which the person refuses", destructive=True)
        def erase(_: Any) -> Any:
            return "gone"

        @described("Deletes a file", destructive=True)
        def remove(_: Any) -> Any:
            return "gone"

        @described("Deletes after a question that nobody answers", destructive=True)
        def ask(_: Any) -> Any:
            return "gone"

        return [echo, make, length, fail, broken, strict, hang, steps, note, until, erase, remove, ask]

    async def consent(self, question: ConsentRequest) -> bool:
        if not question.arguments.get("never"):
            return question.tool["name"] != "erase" and not question.arguments.get("no")
        self._notes.add("asked")
        try:
            await asyncio.Event().wait()
            return False
        except asyncio.CancelledError:
            self._notes.add("withdrawn")
            raise

    async def _until(self, what: str) -> None:
        await self._notes.until(lambda note: bool(note == what))


class Caller:
    """Makes calls, and keeps them by a name."""

    def __init__(self, bot: Assistant) -> None:
        self._bot = bot
        self._calls: dict[str, asyncio.Task[Any]] = {}
        self._measured: set[str] = set()
        self._turns: dict[str, Any] = {}
        self._steps: dict[str, Log] = {}
        self._requested: list[Any] = []
        self._settled = Log()
        self._violations = Log()
        bot.on("requested", self._requested.append)
        bot.on("settled", self._settled.add)
        bot.on("violation", self._violations.add)

    async def ready(self, client: str) -> None:
        await self._bot.ready(client, timeout=20)

    async def begin(self, name: str, tool: str, arguments: Any = None, options: Any = None) -> None:
        options = options or {}
        given = (arguments or {}) if options.get("fill") is None else {"text": "a" * options["fill"]}
        seconds = {"timeout": options.get("timeout"), "owner_wait": options.get("ownerWait")}
        limits: Any = {field: None if time is None else time / 1000 for field, time in seconds.items()}
        caller: Any = self._bot
        if options.get("turn"):
            caller = self._turns[name] = self._bot.turn()
        if options.get("measure"):
            self._measured.add(name)
        steps = self._steps[name] = Log()
        self._calls[name] = asyncio.create_task(
            caller.call(tool, given, to=options.get("to"), on_progress=lambda it: steps.add(it.message), **limits)
        )

    async def result(self, name: str) -> Any:
        try:
            value = plain(await self._calls[name])
        except CallError as error:
            fields = {field: getattr(error, field, None) for field in ("kind", "code", "owners", "size", "max")}
            return {"error": {**fields, "message": str(error), "mayHaveRun": error.may_have_run}}
        except asyncio.CancelledError:
            # The task has no result; an event tells the outcome of its call. A cancelled call may have run.
            event = await self._settled.until(lambda event: bool(event["outcome"] == "cancelled"))
            self._settled.entries.remove(event)
            return {"error": {"code": event["outcome"], "mayHaveRun": True}}
        if name in self._measured:
            text = value["text"]
            return {"value": {"length": len(text), "isIntact": text in ("a" * len(text), "r" * len(text))}}
        return {"value": value}

    async def progress(self, name: str, message: str) -> None:
        await self._steps[name].until(lambda step: bool(step == message))

    async def cancel(self, name: str) -> None:
        self._calls[name].cancel()

    async def bargeIn(self, name: str) -> None:
        self._turns[name].barge_in()

    async def requested(self, tool: str) -> Any:
        return next(event["call"] for event in reversed(self._requested) if event["tool"] == tool)

    async def violation(self, by: str) -> None:
        await self._violations.until(lambda event: bool(event.get("by") == by))


def plain(result: Any) -> Any:
    """What a tool has returned, from the result that carries it as a document of MCP. Any other result is returned as it is."""
    if "native" not in result:
        return result
    value = json.loads(json.loads(result["native"]["json"])["content"][0]["text"])
    return value if isinstance(value, dict) else {"value": value}


async def main(role: str) -> None:
    lines = asyncio.StreamReader(limit=LONGEST)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    room = rtc.Room()
    phone = Phone()
    participant: Any = Assistant(room) if role == "assistant" else Client(room, phone.tools(), consent=phone.consent)
    caller = Caller(participant) if role == "assistant" else None

    async def join(url: str, token: str) -> None:
        await room.connect(url, token, rtc.RoomOptions(auto_subscribe=False, dynacast=False))

    async def answer(command: Any) -> None:
        try:
            run = join if command["do"] == "join" else getattr(caller, command["do"])
            reply = {"value": await run(*command["args"])}
        except Exception:
            reply = {"error": traceback.format_exc()}
        print(json.dumps({"id": command["id"], **reply}), flush=True)

    commands = set()
    while line := await lines.readline():
        commands.add(asyncio.create_task(answer(json.loads(line))))
    await participant.aclose()
    await room.disconnect()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
    # Not by the interpreter's own end: the SDK's threads may still call into it then, and abort the process.
    os._exit(0)
