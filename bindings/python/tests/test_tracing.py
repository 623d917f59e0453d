"""Spans of OpenTelemetry on both ends of a call are in one trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import frames
import pytest
from memory import Ends, in_loop
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from toolbridge import ToolContext, tool

TRACER = TracerProvider().get_tracer("test")


def span_of_tool() -> Any:
    """The parent of the spans that a tool starts, if there is one."""
    context = trace.get_current_span().get_span_context()
    return context if context.is_valid else None


def make_tools(parents: list[Any], metas: list[Any]) -> list[Any]:
    @tool
    async def run(cx: ToolContext) -> None:
        """Runs as a task."""
        parents.append(span_of_tool())
        metas.append(dict(cx.meta))

    @tool
    def run_in_thread(cx: ToolContext) -> None:
        """Runs in a thread."""
        parents.append(span_of_tool())
        metas.append(dict(cx.meta))

    return [run, run_in_thread]


@pytest.mark.parametrize("name", ["run", "run_in_thread"])
def test_span_of_a_tool_is_a_child_of_that_of_its_caller(name: str) -> None:
    @in_loop
    async def test() -> None:
        parents: list[Any] = []
        metas: list[Any] = []
        async with Ends(make_tools(parents, metas)) as ends:
            await ends.bot.call(name)
            assert parents.pop() is None and "traceparent" not in metas.pop()
            with TRACER.start_as_current_span("caller") as span:
                await ends.bot.call(name, meta={"author": "x"})
            context = span.get_span_context()
            parent = parents.pop()
            assert (parent.trace_id, parent.span_id) == (context.trace_id, context.span_id)
            assert parent.is_remote and metas.pop()["author"] == "x"
            await ends.bot.call(name)
            assert parents.pop() is None, "the span of a call is not that of the next one"
            sent = [frames.unpack(it["bytes"]) for it in ends.memory.sent if it["from"] == "agent"]
            (meta,) = [it["meta"] for it in sent if "author" in it["meta"]]
            assert meta["messaging.trace_id"] == trace.format_trace_id(context.trace_id)
            assert meta["messaging.span_id"] == trace.format_span_id(context.span_id)
            assert meta["traceparent"].startswith(f"00-{meta['messaging.trace_id']}-{meta['messaging.span_id']}-")

    test()


@in_loop
async def test_trace_that_the_author_sets_is_kept_and_ids_alone_are_read() -> None:
    trace_id, span_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    parents: list[Any] = []
    async with Ends(make_tools(parents, [])) as ends:
        with TRACER.start_as_current_span("caller"):
            await ends.bot.call("run", meta={"traceparent": f"00-{trace_id}-{span_id}-00"})
            await ends.bot.call("run", meta={"messaging.trace_id": trace_id, "messaging.span_id": span_id})
            await ends.bot.call("run", meta={"traceparent": "nonsense"})
    given, ids, nonsense = parents
    for parent, is_sampled in ((given, False), (ids, True)):
        assert (parent.trace_id, parent.span_id) == (int(trace_id, 16), int(span_id, 16))
        assert parent.trace_flags.sampled is is_sampled
    assert nonsense is None or nonsense.trace_id != int(trace_id, 16)


def test_program_without_opentelemetry_does_not_import_it() -> None:
    program = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from memory import Ends
from toolbridge import tool
@tool
async def run():
    "Runs."
async def main():
    async with Ends([run]) as ends:
        await ends.bot.call("run")
asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    folder = str(Path(__file__).parent)
    ran = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[]\n", "")
