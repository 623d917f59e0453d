"""Runs the scripts of bindings/conformance, whose README says what they mean, in a room in memory."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memory import FakeRoom, Memory, in_loop
from toolbridge import Assistant, CallError, Client, Tool, ToolContext, ToolError, tool

SCRIPTS = json.loads((Path(__file__).parents[2] / "conformance/scripts.json").read_text())

#: The options of tools that have another name in Python, or are times there.
NAMES = {"bargeIn": "barge_in", "timeoutMs": "timeout", "cancelGraceMs": "cancel_grace", "patienceMs": "patience", "preferClient": "prefer_client"}
#: LiveKit's numbers of reasons.
REASONS = {"removed": 4, "room_deleted": 5}
CAPS = {"runningJobs": "running_jobs", "waitingJobs": "waiting_jobs"}


class Log:
    """What the author's functions and listeners have noticed, which steps wait for."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self._changed = asyncio.Event()

    def add(self, **entry: Any) -> None:
        self.entries.append(entry)
        self._changed.set()

    async def until(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            for entry in self.entries:
                if matches(entry):
                    return entry
            self._changed.clear()
            await self._changed.wait()


class Run:
    def __init__(self, script: dict[str, Any]) -> None:
        self.log = Log()
        self.gates: dict[str, asyncio.Event] = {}
        self.calls: dict[int, tuple[str, asyncio.Task[Any], list[dict[str, Any]]]] = {}
        self.turns: dict[str, Any] = {}
        self.participants: dict[str, tuple[FakeRoom, Any]] = {}
        memory = Memory()
        given = {key: script[key] for key in ("tools", "consent", "caps") if key in script}
        clients = script.get("clients", {"phone": given} if "tools" in script else {})
        for identity, client in clients.items():
            room = FakeRoom(memory, identity, "client")
            caps = {CAPS[name]: cap for name, cap in client.get("caps", {}).items()}
            ask = functools.partial(self.answer, client["consent"]) if "consent" in client else None
            self.add(identity, room, Client(room, self.tools(client["tools"]), caps=caps, consent=ask))
        room = FakeRoom(memory, "agent", "assistant", kind=4)
        options = dict(script.get("assistant", {}))
        self.bot = Assistant(room, self.tools(options.pop("tools", {})), **options)
        self.add("agent", room, self.bot)
        self.late = [identity for identity, client in clients.items() if client.get("joinsLater")]
        self.waited = [it for it, client in clients.items() if client["tools"] and it not in self.late]

    def add(self, identity: str, room: FakeRoom, own: Any) -> None:
        self.participants[identity] = room, own
        own.on("warning", lambda event: self.log.add(warned=event["message"], at=identity))
        own.on("requested", lambda event: self.log.add(requested=event["tool"], at=identity))
        own.on("tool_failed", lambda event: None)

    def tools(self, described: dict[str, Any]) -> list[Tool]:
        return [self.tool(name, dict(it)) for name, it in described.items()]

    def tool(self, name: str, options: dict[str, Any]) -> Tool:
        does = options.pop("does")
        self.gates[name] = asyncio.Event()
        named = {NAMES.get(key, key): it / 1000 if key.endswith("Ms") else it for key, it in options.items()}

        async def run(arguments: dict[str, Any], context: ToolContext) -> Any:
            self.log.add(started=name)
            try:
                return await self.execute(name, does, arguments, context)
            except asyncio.CancelledError:
                self.log.add(stopped=name, reason=context.stop_reason)
                if "deaf" in does:
                    await asyncio.Event().wait()
                raise

        return tool(name=name, description=name, schema={"type": "object"}, **named)(run)

    async def execute(self, name: str, does: dict[str, Any], arguments: Any, context: ToolContext) -> Any:
        if "deaf" in does:
            await asyncio.Event().wait()
        if "throw" in does:
            raise RuntimeError(does["throw"])
        for report in does.get("report", ()):
            context.progress(report.get("message"), status=report.get("status", "in_progress"), content=report.get("content"))
            await asyncio.sleep(0.15)  # ten reports a second are sent
        if "wait" in does:
            await self.gates[name].wait()
        if "fail" in does:
            fail = dict(does["fail"])
            raise ToolError(fail.pop("message"), **fail)
        return arguments if does["return"] == "arguments" else does["return"]

    async def answer(self, consent: str, question: Any) -> bool:
        self.log.add(asked=question.text)
        if consent == "throw":
            raise RuntimeError("no screen")
        if consent == "wait":
            await asyncio.Event().wait()
        return consent == "allow"

    def call(self, step: dict[str, Any]) -> None:
        steps: list[dict[str, Any]] = []
        caller = self.turn(step["turn"]) if "turn" in step else self.bot
        limits = {name: step[key] / 1000 for key, name in (("timeoutMs", "timeout"), ("ownerWaitMs", "owner_wait")) if key in step}

        def reported(report: Any) -> None:
            fields = {"status": report.status, "message": report.message, "content": report.content}
            steps.append({key: it for key, it in fields.items() if it is not None})

        arguments = expand(step.get("arguments", {}))
        called = caller.call(step["tool"], arguments, to=step.get("to"), on_progress=reported, **limits)
        self.calls[step["call"]] = step["tool"], asyncio.create_task(called), steps

    def turn(self, name: str) -> Any:
        if name not in self.turns:
            self.turns[name] = self.bot.turn()
        return self.turns[name]

    async def step(self, step: dict[str, Any]) -> None:
        (kind,) = [key for key in step if hasattr(self, f"do_{key}")] or ["none"]
        done = getattr(self, f"do_{kind}")(step)
        if done is not None:
            await done

    def do_call(self, step: dict[str, Any]) -> None:
        self.call(step)

    async def do_result(self, step: dict[str, Any]) -> None:
        _, task, _ = self.calls[step["result"]]
        try:
            found, error = await task, None
        except CallError as raised:
            found, error = None, raised
        except asyncio.CancelledError:
            # A task that was cancelled has no outcome in Python; what became of its tool is another step.
            assert step["error"]["kind"] == "cancelled"
            return
        if "error" not in step:
            assert error is None, error
            assert found == expand(step["value"])
            return
        compare(error, step["error"], found)

    def do_cancel(self, step: dict[str, Any]) -> None:
        self.calls[step["cancel"]][1].cancel()

    def do_bargeIn(self, step: dict[str, Any]) -> None:
        self.turn(step["bargeIn"]).barge_in()

    def do_endTurn(self, step: dict[str, Any]) -> None:
        self.turn(step["endTurn"]).end()

    async def do_started(self, step: dict[str, Any]) -> None:
        await self.log.until(lambda it: it.get("started") == step["started"])

    def do_open(self, step: dict[str, Any]) -> None:
        self.gates[step["open"]].set()

    async def do_stopped(self, step: dict[str, Any]) -> None:
        found = await self.log.until(lambda it: it.get("stopped") == step["stopped"])
        assert found["reason"] == step["reason"]

    async def do_arrived(self, step: dict[str, Any]) -> None:
        name = self.calls[step["arrived"]][0]
        await self.log.until(lambda it: it.get("requested") == name and it["at"] != "agent")

    def do_progress(self, step: dict[str, Any]) -> None:
        assert self.calls[step["progress"]][2] == step["is"]

    async def do_asked(self, step: dict[str, Any]) -> None:
        if step["asked"] is None:
            assert not [it for it in self.log.entries if "asked" in it]
        else:
            await self.log.until(lambda it: step["asked"] in it.get("asked", ""))

    def do_askedTimes(self, step: dict[str, Any]) -> None:
        assert len([it for it in self.log.entries if "asked" in it]) == step["askedTimes"]

    def do_ran(self, step: dict[str, Any]) -> None:
        assert [it["started"] for it in self.log.entries if "started" in it] == step["ran"]

    async def do_warned(self, step: dict[str, Any]) -> None:
        await self.log.until(lambda it: step["warned"] in it.get("warned", "") and it["at"] == step["at"])

    async def do_late(self, step: dict[str, Any]) -> None:
        while not (found := [it for it in self.bot.late_results() if it.tool == step["late"]]):
            await asyncio.sleep(0.01)
        if "error" in step:
            compare(found[0].error, step["error"], found[0].value)
        else:
            assert found[0].value == step["value"]

    async def do_join(self, step: dict[str, Any]) -> None:
        await self.participants[step["join"]][0].connect()

    def do_lose(self, step: dict[str, Any]) -> None:
        self.participants[step["lose"]][0].lose()

    def do_restore(self, step: dict[str, Any]) -> None:
        self.participants[step["restore"]][0].restore(rejoins=step.get("rejoins", False))

    def do_disconnect(self, step: dict[str, Any]) -> None:
        self.participants[step["disconnect"]][0].end(REASONS[step["why"]])

    async def do_close(self, step: dict[str, Any]) -> None:
        await self.participants[step["close"]][1].aclose()

    def do_offer(self, step: dict[str, Any]) -> None:
        self.participants[step["at"]][1].offer(self.tools(step["offer"]))


def compare(error: CallError | None, expected: dict[str, Any], found: object) -> None:
    assert error is not None, found
    names = {"mayHaveRun": "may_have_run"}
    for key, it in expected.items():
        actual = str(error) if key == "message" else getattr(error, names.get(key, key))
        assert actual == it, f"{key}: {error}"


def expand(value: Any) -> Any:
    """``{"repeat": "x", "times": 3}`` is ``xxx``."""
    if not isinstance(value, dict):
        return value
    if "repeat" in value:
        return value["repeat"] * value["times"]
    return {key: expand(item) for key, item in value.items()}


@pytest.mark.parametrize("script", SCRIPTS, ids=[script["name"] for script in SCRIPTS])
@in_loop
async def test_conformance(script: dict[str, Any]) -> None:
    run = Run(script)
    for identity, (room, _) in run.participants.items():
        if identity not in run.late:
            await room.connect()
    try:
        for identity in run.waited:
            await run.bot.ready(identity)
        for step in script["steps"]:
            await asyncio.wait_for(run.step(step), 10)
            await asyncio.sleep(0)
    finally:
        for _, own in run.participants.values():
            await own.aclose()
