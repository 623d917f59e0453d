"""Tools: Python functions that a participant offers."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, overload

from ._errors import Invalid
from ._json import JsonObject, present, to_json_text
from ._options import TIMES, check_tool_options
from ._record import Record
from ._vocabulary import RECORDS

if TYPE_CHECKING:
    from datetime import datetime

    from ._types import BargeIn, Consent, Disclose, ProgressStatus, StopReason, Tools

#: The longest name of a tool, in characters.
MAX_TOOL_NAME = 64

#: Names that begin with this are reserved for the protocol.
RESERVED = "bridge."

#: The core's keys of options that have another name there.
_KEYS = {name: key for key, (name, _, _) in RECORDS["Tool"].items()}

#: How long a cancelled tool may clean up if it does not say, in seconds.
DEFAULT_CANCEL_GRACE = 1.0


class ToolContext:
    """What a running tool knows of its call. A function gets it as the parameter with this type."""

    def __init__(
        self,
        caller: str,
        call: str,
        deadline: datetime,
        meta: JsonObject,
        *,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[ProgressStatus, str | None, str | None], None],
    ) -> None:
        #: The identity of the participant that calls.
        self.caller = caller
        #: The call's id.
        self.call = call
        #: When the run is stopped: at the end of the tool's ``timeout``, or when the caller no longer waits.
        self.deadline = deadline
        #: What the caller sent along.
        self.meta = meta
        #: Why the call was stopped, or ``None``. An ``async`` function is also cancelled; a plain one should look at this.
        self.stop_reason: StopReason | None = None
        self._loop = loop
        self._report = report
        self._stopped = threading.Event()

    def __repr__(self) -> str:
        return f"ToolContext(caller={self.caller!r}, call={self.call!r}, stop_reason={self.stop_reason!r})"

    def progress(self, message: str | None = None, *, content: object = None, status: ProgressStatus = "in_progress") -> None:
        """Reports progress to the caller. A plain function may call it in its thread."""
        text = None if content is None else to_json_text(content, "content")
        if _running_loop() is self._loop:
            self._report(status, message, text)
        else:
            self._loop.call_soon_threadsafe(self._report, status, message, text)

    def wait_until_stopped(self, timeout: float | None = None) -> bool:
        """Blocks a plain function until the call is stopped, or for so many seconds. Returns whether it is stopped."""
        return self._stopped.wait(timeout)

    def _stop(self, reason: StopReason) -> None:
        self.stop_reason = reason
        self._stopped.set()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Tool:
    """A function with its description: made by ``tool``. It can be called like the function."""

    def __init__(self, run: Callable[..., Any], options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, run)
        self._run = run
        self._options = dict(options)
        check_tool_options(self._name, self._options)

    @property
    def _name(self) -> str:
        return str(self._options.get("name") or _own_name(self._run))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def __get__(self, instance: object, owner: object = None) -> Tool:
        """Returns the tool of an object, if a class defines it as a method."""
        return self if instance is None else Tool(types.MethodType(self._run, instance), self._options)


@overload
def tool(run: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    schema: JsonObject | None = None,
    validate: Callable[[JsonObject], object] | None = None,
    title: str | None = None,
    short_title: str | None = None,
    source: str | None = None,
    output_schema: JsonObject | None = None,
    meta: JsonObject | None = None,
    destructive: bool | None = None,
    idempotent: bool | None = None,
    read_only: bool | None = None,
    open_world: bool | None = None,
    consent: Consent | None = None,
    timeout: float | None = None,
    patience: float | None = None,
    cancel_grace: float | None = None,
    disclose: Disclose | None = None,
    prefer_client: bool | None = None,
    barge_in: BargeIn | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(run: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Describes a function as a tool. Times are in seconds.

    - ``name``: default: that of the function. ``description``: default: its docstring. What that says of parameters (in Google's
      style, Sphinx's or NumPy's) describes them.
    - ``schema``: the JSON Schema of the arguments. The function then takes them as one dictionary, its first parameter, and
      only ``validate`` checks them: by returning ``False`` or a text, or by raising. Default: the type hints.
    - ``destructive``: a person is asked before it runs, unless ``consent`` says otherwise.
    - ``consent``: when a person is asked. Default: ``always`` if it is destructive, else ``never``.
    - ``timeout``: the longest time of one run. ``patience``: the limit of a call whose caller sets none.
    - ``cancel_grace``: how long it may clean up when it is stopped. Default: 1.
    - ``barge_in``: what happens when the user interrupts: ``cancel`` (default), ``finish`` or ``report``.
    - ``disclose``, ``prefer_client``: of an assistant's own tool: what the room sees of its calls, and whether a client that
      offers it too runs it.
    """
    if run is not None:
        return Tool(run, {})
    return lambda run: Tool(run, present(**options))


class NamedTool(Record):
    """A tool that is ready to be offered and run."""

    #: Its description in the form of the core.
    core: JsonObject
    is_async: bool
    cancel_grace: float
    timeout: float | None
    #: Checks arguments, and returns those of ``call``. Raises ``Invalid``.
    check: Callable[[JsonObject], Any]
    #: Calls the function.
    call: Callable[[Any, ToolContext], Any]


def name_tools(tools: Tools) -> dict[str, NamedTool]:
    """Raises ``TypeError`` or ``ValueError``, which names the tool, if one cannot be offered."""
    named: dict[str, NamedTool] = {}
    if callable(tools) or isinstance(tools, Mapping) or not isinstance(tools, Iterable):
        raise TypeError(f"the tools must be a list of functions, such as [f], not {type(tools).__name__}")
    for given in tools:
        made = given if isinstance(given, Tool) else Tool(given, {}) if callable(given) else None
        if made is None:
            raise TypeError(f"a tool must be a function, not {type(given).__name__}")
        found = _name_tool(made)
        name = found.core["name"]
        if name in named:
            raise ValueError(f'the tool "{name}" is named twice')
        named[name] = found
    return named


def _name_tool(made: Tool) -> NamedTool:
    run, options = made._run, dict(made._options)
    name = options.pop("name", None) or _own_name(run)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise ValueError(f'tool "{name}": a name has 1 to {MAX_TOOL_NAME} of the characters A–Z a–z 0–9 _ . -')
    if name.startswith(RESERVED):
        raise ValueError(f'tool "{name}": names that begin with "{RESERVED}" are reserved')
    if len(name) > MAX_TOOL_NAME:
        raise ValueError(f'tool "{name}": the name has {len(name)} characters; {MAX_TOOL_NAME} are allowed')
    text, about = _about(run)
    description = options.pop("description", None) or text
    if not description:
        raise TypeError(f'tool "{name}": it needs a description: write a docstring, or pass `description`')
    schema, validate = options.pop("schema", None), options.pop("validate", None)
    is_async = inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(getattr(run, "__call__", None))
    if schema is None:
        if validate is not None:
            raise TypeError(f'tool "{name}": `validate` needs `schema`')
        from ._schema import read_parameters  # only now: an assistant without tools never needs it

        parameters = read_parameters(name, run, ToolContext, about)
        schema, check = parameters.schema, parameters.check
        context = parameters.context

        def call(arguments: Any, cx: ToolContext) -> Any:
            return run(**arguments) if context is None else run(**arguments, **{context: cx})

    else:
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise TypeError(f'tool "{name}": `schema` must be a JSON Schema with "type": "object"')
        check = _plain_check(validate)
        takes_context = len(inspect.signature(run).parameters) > 1

        def call(arguments: Any, cx: ToolContext) -> Any:
            return run(arguments, cx) if takes_context else run(arguments)

    core = {"name": name, "description": description, "inputSchema": schema}
    for option, value in options.items():
        core[_KEYS.get(option, option)] = round(value * 1000, 3) if option in TIMES else value
    try:
        to_json_text(core, name)
    except TypeError as error:
        raise TypeError(f'tool "{name}": {error}') from None
    grace, timeout = options.get("cancel_grace", DEFAULT_CANCEL_GRACE), options.get("timeout")
    return NamedTool(core, is_async, grace, timeout, check, call)


def without_partials(run: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a ``functools.partial`` calls: it has the name, the docstring and the type hints."""
    while isinstance(run, functools.partial):
        run = run.func
    return run


def _own_name(run: Callable[..., Any]) -> Any:
    return getattr(without_partials(run), "__name__", "")


def _about(run: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """What the docstring of a function says of it, and of its parameters."""
    run = without_partials(run)
    doc = inspect.getdoc(run) or ""
    if not doc and not inspect.isroutine(run):
        doc = inspect.getdoc(type(run).__call__) or ""
    if "\n" not in doc:
        return doc, {}
    from ._docstring import read_docstring  # only now: few docstrings have several lines

    return read_docstring(doc)


def _plain_check(validate: Callable[[JsonObject], object] | None) -> Callable[[JsonObject], Any]:
    def check(arguments: JsonObject) -> JsonObject:
        if validate is None:
            return arguments
        try:
            found = validate(arguments)
        except Exception as error:
            raise Invalid(str(error) or type(error).__name__) from error
        if found is False:
            raise Invalid("the arguments do not match the schema")
        if isinstance(found, str):
            raise Invalid(found)
        return arguments

    return check
