"""Runs the functions of tools, and reports their outcomes."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ._errors import Invalid, ToolError
from ._json import JsonObject, join_json, present, to_json_text
from ._tool import RESERVED, NamedTool, ToolContext
from ._tracing import enter_span

if TYPE_CHECKING:
    from datetime import datetime

    from ._session_runner import SessionRunner
    from ._types import ProgressStatus, StopReason

#: The most plain functions that run at once, each in a thread of its own.
THREADS = 16

#: While tools run, how often it is checked that nothing blocks the event loop, in seconds.
WATCH = 1.0

#: How long the event loop may be blocked before that is reported, in seconds. After 5 the others take this participant for lost.
BLOCKED = 4.0

#: The message for the caller if a tool raised something that is not a ``ToolError``.
LOCAL_MESSAGE = "the tool failed"

#: The longest cause that is reported, in characters.
_MAX_CAUSE = 1_000

Failure = dict[str, str]


class Threads:
    """Runs plain functions, each in a daemon thread: one that hangs does not keep the process from ending."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop = loop
        self._most = most
        self._running = 0
        self._waiting: deque[Callable[[], bool]] = deque()

    async def run(self, call: Callable[[], Any], start: Callable[[], bool] = lambda: True) -> Any:
        """Runs a function, if it may start, and returns what it returns. If this is cancelled, one that waits never starts."""
        done: asyncio.Future[Any] = self._loop.create_future()
        context = contextvars.copy_context()

        def begin() -> bool:
            if done.cancelled():
                return False
            if not start():
                done.cancel()
                return False
            threading.Thread(target=context.run, args=(self._work, call, done), name="toolbridge-tool", daemon=True).start()
            return True

        self._waiting.append(begin)
        self._fill()
        return await done

    def _fill(self) -> None:
        while self._waiting and self._running < self._most:
            if self._waiting.popleft()():
                self._running += 1

    def _work(self, call: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        value: Any = None
        raised: BaseException | None = None
        try:
            value = call()
        except BaseException as error:
            raised = error
        try:
            self._loop.call_soon_threadsafe(self._end, done, value, raised)
        except RuntimeError:
            pass  # the loop was closed

    def _end(self, done: asyncio.Future[Any], value: Any, raised: BaseException | None) -> None:
        self._running -= 1
        if not done.done():
            if isinstance(raised, StopIteration):  # a future cannot hold it
                done.set_exception(RuntimeError("the function raised StopIteration"))
            elif raised is not None:
                done.set_exception(raised if isinstance(raised, Exception) else RuntimeError(repr(raised)))
            else:
                done.set_result(value)
        self._fill()


class _Job:
    def __init__(self, execute: Mapping[str, Any], tool: NamedTool) -> None:
        self.key: int = execute["key"]
        self.execute = execute
        self.tool = tool
        self.task: asyncio.Task[None] | None = None
        self.context: ToolContext | None = None
        #: Whether the function has begun.
        self.is_started = False
        #: Whether its task can be cancelled: it does not wait for a thread.
        self.is_async = tool.is_async
        self.stop_reason: StopReason | None = None


class Executor:
    """Runs the functions of jobs. The core says when, and when each must end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        runner: SessionRunner,
        threads: Threads,
        raised: Callable[[str, Exception], None],
        warn: Callable[[str], None],
    ) -> None:
        """``raised`` gets each exception whose text the caller does not see, and the name of its tool."""
        self._warn = warn
        self._watch: asyncio.TimerHandle | None = None
        self._loop = loop
        self._raised = raised
        self._runner = runner
        self._threads = threads
        self._jobs: dict[int, _Job] = {}
        self._context = contextvars.copy_context()
        self.tools: Mapping[str, NamedTool] = {}

    def check(self, name: str, arguments: JsonObject) -> Failure | None:
        """Checks arguments before a person is asked. Returns why they are refused."""
        tool = self.tools.get(name)
        if tool is None:
            return _unknown_tool(name)
        try:
            tool.check(arguments)
            return None
        except Exception as error:
            if not isinstance(error, Invalid):
                self._raised(name, error)
            return _invalid(error)

    def execute(self, execute: Mapping[str, Any]) -> None:
        """Runs a job."""
        key, tool = execute["key"], self.tools.get(execute["tool"])
        if tool is None:
            return self.refuse(key, _unknown_tool(execute["tool"]))
        job = self._jobs[key] = _Job(execute, tool)
        # What starts a job is often the end of another one, whose context is not its own.
        name = f'toolbridge: {tool.core["name"]}'
        job.task = self._context.copy().run(lambda: self._loop.create_task(self._run(job), name=name))
        # Such as after a `SystemExit`, or if it was cancelled before its first step: otherwise its caller would wait.
        failure = {"code": "execution_error", "message": LOCAL_MESSAGE}
        job.task.add_done_callback(lambda _: self._settle(job, None, failure))
        if self._watch is None:
            self._watch_loop()

    def refuse(self, key: int, failure: Failure) -> None:
        """Settles a job that does not run."""
        self._runner.feed({"type": "settle", "key": key}, {"error": join_json(failure, {})})

    def abort(self, key: int, reason: StopReason) -> None:
        """Stops a function. One that has ended is unaffected."""
        job = self._jobs.get(key)
        if job is None or job.stop_reason is not None:
            return
        job.stop_reason = reason
        if job.context is not None:
            job.context._stop(reason)
        # The thread of a plain function cannot be ended: it is waited for.
        if job.task is not None and (job.is_async or not job.is_started):
            job.task.cancel()

    def abort_all(self, reason: StopReason) -> None:
        """Stops all functions, because the session has ended. Nothing is reported any more."""
        for key in list(self._jobs):
            self.abort(key, reason)
        self._jobs.clear()

    def _watch_loop(self) -> None:
        """Reports that something blocks the event loop while tools run: the others cannot tell that from a lost program."""
        due = self._loop.time() + WATCH

        def look() -> None:
            late = self._loop.time() - due
            if late >= BLOCKED:
                self._warn(
                    f"the event loop was blocked for {late:.0f} s while a tool ran: after 5 s the others take this participant "
                    "for lost. Make the tool a plain function, which runs in a thread, or use asyncio.to_thread in it"
                )
            self._watch = None
            if self._jobs:
                self._watch_loop()

        self._watch = self._loop.call_at(due, look)

    async def _run(self, job: _Job) -> None:
        try:
            value = await self._call(job)
            self._settle(job, "null" if value is None else to_json_text(value, "the result"))
        except asyncio.CancelledError:
            # After a stop the outcome is the core's.
            failure = {"code": "execution_error", "message": LOCAL_MESSAGE, "cause": "CancelledError"}
            self._settle(job, None, failure)
        except Invalid as error:
            self._settle(job, None, {"code": "invalid_parameters", "message": str(error)})
        except Exception as raised:
            mine = _of_author(raised)
            # After a stop, an error is only how the tool ended.
            if job.stop_reason is None and not isinstance(mine, ToolError):
                self._raised(job.execute["tool"], raised)
            self._settle(job, None, *_failure(mine))

    async def _call(self, job: _Job) -> object:
        execute, tool = job.execute, job.tool
        key = job.key
        arguments = tool.check(execute["arguments"])

        def report(status: ProgressStatus, message: str | None, content: str | None) -> None:
            fields = {"type": "progress", "key": key, "status": status, **present(message=message)}
            if self._jobs.get(key) is job:
                self._runner.feed(fields, {} if content is None else {"content": content})

        # The protocol sends its own keys along.
        meta = {key: value for key, value in execute.get("meta", {}).items() if not key.startswith(RESERVED)}
        enter_span(meta)

        def end() -> datetime:
            left = self._runner.left(execute["endsAtMs"]) / 1000
            return time_in(left if tool.timeout is None else min(left, tool.timeout))

        context = job.context = ToolContext(
            execute["caller"], execute["call"], end(), meta, loop=self._loop, report=report
        )

        def start() -> bool:
            job.is_started = self._jobs.get(key) is job and self._runner.start(key)
            if not tool.is_async:
                context.deadline = end()  # it may have waited for a thread
            return job.is_started

        if not tool.is_async:
            value = await self._threads.run(lambda: tool.call(arguments, context), start)
        elif start():
            value = tool.call(arguments, context)
        else:
            raise asyncio.CancelledError
        if not inspect.isawaitable(value):
            return value
        job.is_async = True  # a plain function has wrapped an `async` one
        if job.stop_reason is not None:
            if inspect.iscoroutine(value):
                value.close()
            raise asyncio.CancelledError
        return await value

    def _settle(self, job: _Job, value: str | None, failure: Failure | None = None, partial: str | None = None) -> None:
        """Reports that a function has ended, once, and its outcome: an earlier one of the core counts."""
        if self._jobs.get(job.key) is not job:
            return
        del self._jobs[job.key]
        if failure is None:
            outcome = {"value": value or "null"}
        else:
            outcome = {"error": join_json(failure, {} if partial is None else {"partial": partial})}
        self._runner.feed({"type": "settle", "key": job.key}, outcome)


def _unknown_tool(name: str) -> Failure:
    return {"code": "unknown_tool", "message": f'there is no tool named "{name}"'}


def _invalid(error: Exception) -> Failure:
    if isinstance(error, Invalid):
        return {"code": "invalid_parameters", "message": str(error)}
    return {"code": "execution_error", "message": LOCAL_MESSAGE, "cause": describe(error)}


def _of_author(error: Exception) -> Exception:
    """The first error in a group that is for the caller, such as of a ``TaskGroup``. Otherwise the error itself."""
    groups = [error]
    for group in groups:
        for inner in getattr(group, "exceptions", ()):
            if isinstance(inner, ToolError):
                return inner
            groups.append(inner)
    return error


def _failure(error: Exception) -> tuple[Failure, str | None]:
    """The text of an error that the author wrote for the caller is sent; that of any other error stays here."""
    local = {"code": "execution_error", "message": LOCAL_MESSAGE, "cause": describe(error)}
    if not isinstance(error, ToolError):
        return local, None
    partial: str | None = None
    try:
        if error.partial is not None:
            partial = to_json_text(error.partial, "partial")
    except TypeError as problem:
        return {**local, "cause": describe(problem)}, None
    cause = {} if error.__cause__ is None else {"cause": describe(error.__cause__)}
    return {"code": error.code, "message": text_of(error), **cause}, partial


def time_in(seconds: float) -> datetime:
    """The time in so many seconds."""
    from datetime import datetime, timedelta, timezone  # only now: an assistant without tools never needs it

    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""  # an author's `__str__` that raises


def describe(error: BaseException) -> str:
    """The text of an exception."""
    text = text_of(error)
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__)[:_MAX_CAUSE]
