"""Runs the calls of tools: a limited number at once, each within its time limit, each with exactly one outcome."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ._errors import Invalid, ToolError
from ._json import JsonObject, to_json_text
from ._tool import NamedTool, ToolContext
from ._tracing import enter_span

if TYPE_CHECKING:
    from datetime import datetime

    from ._types import ProgressStatus, Reports, StopReason

#: The most calls that run at once, and the most that wait for one of them to end, if the caps do not say.
RUNNING = 64
WAITING = 256

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

    async def run(self, call: Callable[[], Any], started: Callable[[], None] = lambda: None) -> Any:
        """Runs a function, and returns what it returns. If this is cancelled, a function that waits never starts."""
        done: asyncio.Future[Any] = self._loop.create_future()
        context = contextvars.copy_context()

        def start() -> bool:
            if done.cancelled():
                return False
            started()
            threading.Thread(target=context.run, args=(self._work, call, done), name="toolbridge-tool", daemon=True).start()
            return True

        self._waiting.append(start)
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


#: How long before the end of its time a call gives up waiting, in seconds.
_WAIT_MARGIN = 0.5


class _Job:
    def __init__(self, execute: Mapping[str, Any], tool: NamedTool, deadline: float) -> None:
        self.execute = execute
        self.tool = tool
        #: By the loop's clock.
        self.deadline = deadline
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.context: ToolContext | None = None
        #: Whether its outcome was reported.
        self.is_settled = False
        #: Whether it takes one of the places.
        self.is_running = False
        #: Whether the function has begun.
        self.is_started = False
        #: Whether its task can be cancelled: it does not wait for a thread.
        self.is_async = tool.is_async
        self.stop_reason: StopReason | None = None

    @property
    def key(self) -> int:
        return int(self.execute["key"])

    @property
    def wait_until(self) -> float:
        """Until when it must have started: its caller must still learn that nothing ran. Of a short limit, a quarter is left."""
        return self.deadline - min(_WAIT_MARGIN, float(self.execute["limitMs"]) / 4000)


class Executor:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reports: Reports,
        threads: Threads,
        caps: Mapping[str, int],
        raised: Callable[[str, Exception], None],
        warn: Callable[[str], None],
    ) -> None:
        """``raised`` gets each exception whose text the caller does not see, and the name of its tool."""
        self._warn = warn
        self._watch: asyncio.TimerHandle | None = None
        self._loop = loop
        self._raised = raised
        self._reports = reports
        self._threads = threads
        self._jobs: dict[int, _Job] = {}
        self._waiting: deque[_Job] = deque()
        self._most_running = caps.get("running_jobs", RUNNING)
        self._most_waiting = caps.get("waiting_jobs", WAITING)
        self._running = 0
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

    def execute(self, execute: Mapping[str, Any], deadline: float) -> None:
        """Starts a job, or queues it until others end. ``deadline`` is its end by the loop's clock."""
        key, tool = execute["key"], self.tools.get(execute["tool"])
        if tool is None:
            return self._reports.settle(key, None, _unknown_tool(execute["tool"]))
        if self._running >= self._most_running and len(self._waiting) >= self._most_waiting:
            message = f"{self._running} calls are running and {len(self._waiting)} are waiting; nothing ran"
            return self._reports.settle(key, None, {"code": "busy", "message": message})
        job = self._jobs[key] = _Job(execute, tool, deadline)
        if self._running < self._most_running:
            return self._begin(job)
        self._waiting.append(job)
        self._set_timer(job, job.wait_until - self._loop.time(), lambda: self._never_started(job))

    def abort(self, key: int, reason: StopReason) -> None:
        """Stops a job. One that has ended is unaffected."""
        job = self._jobs.get(key)
        if job is None:
            return
        if not job.is_running:
            self._leave_queue(job)
            self._settle(job, None, _CANCELLED)
        else:
            self._stop(job, reason, lambda: self._settle(job, None, _CANCELLED))

    def refuse_unstarted(self) -> None:
        """Ends all jobs that have not started, because the participant leaves: their callers can know that nothing ran."""
        for job in list(self._jobs.values()):
            if job.is_started:
                continue
            if not job.is_running:
                self._leave_queue(job)
            self._settle(job, None, _LEAVING)

    def abort_all(self, reason: StopReason) -> None:
        """Stops all jobs, because the session has ended. Nothing is reported any more."""
        for job in list(self._jobs.values()):
            job.is_settled = True
            if job.is_running:
                self._stop(job, reason, lambda: None)
            else:
                self._leave_queue(job)
        self._jobs.clear()

    def _begin(self, job: _Job) -> None:
        job.is_running = True
        self._running += 1
        _cancel(job.timer)
        # What starts a job is often the end of another one, whose context is not its own.
        name = f'toolbridge: {job.tool.core["name"]}'
        job.task = self._context.copy().run(lambda: self._loop.create_task(self._run(job), name=name))
        job.task.add_done_callback(lambda _: self._end(job))
        if self._watch is None:
            self._watch_loop()

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
            if self._running > 0:
                self._watch_loop()

        self._watch = self._loop.call_at(due, look)

    def _end(self, job: _Job) -> None:
        """Frees the place of a job, once, and gives it to the next one."""
        if not job.is_running:
            return
        job.is_running = False
        _cancel(job.timer)
        # Such as after a `SystemExit`: otherwise its caller would wait.
        self._settle(job, None, {"code": "execution_error", "message": LOCAL_MESSAGE})
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
        self._running -= 1
        if self._waiting:
            self._begin(self._waiting.popleft())

    async def _run(self, job: _Job) -> None:
        try:
            value = await self._call(job)
            self._settle(job, "null" if value is None else to_json_text(value, "the result"), None)
        except asyncio.CancelledError:
            if job.stop_reason is None and not job.is_settled:
                failure = {"code": "execution_error", "message": LOCAL_MESSAGE, "cause": "CancelledError"}
                self._settle(job, None, failure)
            self._settle(job, None, _CANCELLED)
        except Invalid as error:
            self._settle(job, None, {"code": "invalid_parameters", "message": str(error)})
        except Exception as raised:
            mine = _of_author(raised)
            # After a stop, an error is only how the tool ended.
            if not job.is_settled and job.stop_reason is None and not isinstance(mine, ToolError):
                self._raised(job.execute["tool"], raised)
            self._settle(job, None, *_failure(mine))

    async def _call(self, job: _Job) -> object:
        execute, tool, loop = job.execute, job.tool, self._loop
        key = job.key
        arguments = tool.check(execute["arguments"])
        if job.is_settled or job.stop_reason is not None:
            raise asyncio.CancelledError

        def report(status: ProgressStatus, message: str | None, content: str | None) -> None:
            if not job.is_settled:
                self._reports.progress(key, status, message, content)

        meta = execute.get("meta", {})
        enter_span(meta)

        context = job.context = ToolContext(
            execute["caller"],
            execute["call"],
            time_in(job.deadline - loop.time()),
            meta,
            loop=loop,
            report=report,
        )

        def started() -> None:
            job.is_started = True
            # The tool's own limit is of one run: it does not count the wait for a thread.
            left, limit = job.deadline - loop.time(), execute["limitMs"]
            if tool.timeout is not None and tool.timeout < left:
                left, limit = tool.timeout, tool.timeout * 1000
                context.deadline = time_in(left)
            self._set_timer(job, left, lambda: self._late(job, limit))
            self._reports.job_started(key)

        if not tool.is_async:
            self._set_timer(job, job.wait_until - loop.time(), lambda: self._stop_unstarted(job))
            value = await self._threads.run(lambda: tool.call(arguments, context), started)
        else:
            started()
            value = tool.call(arguments, context)
        if not inspect.isawaitable(value):
            return value
        job.is_async = True  # a plain function has wrapped an `async` one
        if job.stop_reason is not None:
            if inspect.iscoroutine(value):
                value.close()
            raise asyncio.CancelledError
        return await value

    def _late(self, job: _Job, limit: float) -> None:
        # The caller's limit ends at the same time: the result is sent first, then the tool cleans up.
        message = f"the tool took longer than its limit of {limit:g} ms"
        self._settle(job, None, {"code": "timeout", "message": message})
        self._stop(job, "deadline", lambda: None)

    def _stop_unstarted(self, job: _Job) -> None:
        """All threads are taken."""
        self._settle(job, None, _too_many(job))
        self._stop(job, "deadline", lambda: None)

    def _never_started(self, job: _Job) -> None:
        self._leave_queue(job)
        self._settle(job, None, _too_many(job))

    def _stop(self, job: _Job, reason: StopReason, then: Callable[[], None]) -> None:
        """Stops a running job; its place is free, and ``then`` is called, when it has ended or its time is over."""
        if job.stop_reason is not None:
            return

        def over() -> None:
            then()
            self._end(job)

        job.stop_reason = reason
        self._set_timer(job, job.tool.cancel_grace, over)
        if job.context is not None:
            job.context._stop(reason)
        # The thread of a plain function cannot be ended: it is waited for.
        if job.task is not None and (job.is_async or not job.is_started):
            job.task.cancel()

    def _settle(self, job: _Job, value: str | None, failure: Failure | None, partial: str | None = None) -> None:
        if job.is_settled:
            return
        job.is_settled = True
        if not job.is_running:
            self._jobs.pop(job.key, None)
        self._reports.settle(job.key, value, failure, partial)

    def _leave_queue(self, job: _Job) -> None:
        _cancel(job.timer)
        if job in self._waiting:
            self._waiting.remove(job)

    def _set_timer(self, job: _Job, delay: float, then: Callable[[], None]) -> None:
        _cancel(job.timer)
        job.timer = self._loop.call_later(max(delay, 0), then)


_LEAVING: Failure = {"code": "busy", "message": "the participant is leaving; nothing ran"}
_CANCELLED: Failure = {"code": "cancelled", "message": "the call was cancelled"}


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _too_many(job: _Job) -> Failure:
    limit = job.execute["limitMs"]
    message = f"the call had no place to run within its limit of {limit:g} ms; nothing ran"
    return {"code": "busy", "message": message}  # not `timeout`, which leaves open whether the tool ran


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
