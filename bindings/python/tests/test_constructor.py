"""What the constructors refuse."""

from __future__ import annotations

import asyncio
import builtins
import subprocess
import sys
from typing import Any

import pytest
from livekit import rtc
from memory import FakeRoom, Memory, in_loop
from toolbridge import Assistant, Client, UnknownTool, tool
from toolbridge._join import in_python


async def good() -> None:
    """Does nothing."""


def room() -> FakeRoom:
    return FakeRoom(Memory(), "phone", "client")


def named(name: str) -> Any:
    return tool(name=name, description="x")(good)


async def no_hint(a) -> None:  # type: ignore[no-untyped-def]
    """Has no hint."""


async def rest(*rest: int) -> None:
    """Takes a rest."""


async def unknown_hint(a: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Has a hint that cannot be read."""


async def strange(a: object) -> None:
    """Has a hint without a schema."""


async def undocumented() -> None:
    pass


@pytest.mark.parametrize(
    "tools, text",
    [
        ([good, good], 'the tool "good" is named twice'),
        ([named("bridge.tools")], 'tool "bridge.tools": names that begin with "bridge." are reserved'),
        ([named("a" * 65)], "has 65 characters; 64 are allowed"),
        ([named("a b")], 'tool "a b": a name has 1 to 64'),
        ([lambda: 1], 'tool "<lambda>": a name has 1 to 64'),
        ([no_hint], 'tool "no_hint": the parameter "a" has no type hint'),
        ([rest], 'tool "rest": the parameter "rest" cannot be passed by its name'),
        ([unknown_hint], 'tool "unknown_hint": its type hints cannot be read'),
        ([undocumented], 'tool "undocumented": it needs a description'),
        ([tool(schema={"type": "string"}, description="x")(good)], 'tool "good": `schema` must be a JSON Schema'),
        ([tool(meta={"a": float("nan")})(good)], 'tool "good": good.meta.a is nan'),
        ([tool(validate=bool)(good)], 'tool "good": `validate` needs `schema`'),
        ([1], "a tool must be a function, not int"),
        (good, "the tools must be a list of functions, such as [f], not function"),
        ({"good": good}, "the tools must be a list of functions, such as [f], not dict"),
        (None, "the tools must be a list of functions, such as [f], not NoneType"),
    ],
)
def test_tool_that_cannot_be_offered_raises_with_its_name(tools: Any, text: str) -> None:
    @in_loop
    async def run() -> None:
        phone = room()
        with pytest.raises((TypeError, ValueError)) as raised:
            Client(phone, tools)
        assert text in str(raised.value)
        await Client(phone, [good]).aclose()  # nothing is left behind

    run()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"consent": "sometimes"}, '`consent` is \'sometimes\'; it must be one of "never", "once_per_session", "always"'),
        ({"barge_in": "stop"}, '`barge_in` is \'stop\'; it must be one of "cancel", "finish", "report"'),
        ({"disclose": True}, '`disclose` is True; it must be one of "full", "name", "nothing"'),
        ({"readOnly": True}, 'there is no option "readOnly" (did you mean "read_only"?); the options are barge_in, '),
        ({"destructive": 1}, "`destructive` must be True or False, not 1"),
        ({"title": 1}, "`title` must be a text, not 1"),
        ({"output_schema": "x"}, "`output_schema` must be a dictionary, not str"),
        ({"validate": "x", "schema": {"type": "object"}}, "`validate` must be a function, not str"),
        ({"timeout": -1}, "`timeout` is -1; it must be a number of seconds above 0"),
        ({"patience": 0}, "`patience` is 0; it must be a number of seconds above 0"),
        ({"timeout": "5"}, "`timeout` must be a number of seconds, not str"),
        ({"cancel_grace": float("nan")}, "`cancel_grace` is nan; it must be a number of seconds of 0 or more"),
    ],
)
def test_option_of_a_tool_that_cannot_be_raises_with_tool_and_values(options: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        tool(**options)(good)
    assert f'tool "good": {text}' in str(raised.value)
    tool(cancel_grace=0, timeout=0.5, consent="once_per_session", barge_in="report", read_only=False)(good)


@in_loop
async def test_limit_of_a_call_that_cannot_be_raises_in_seconds() -> None:
    agent = FakeRoom(Memory(), "agent", "assistant")
    async with Assistant(agent) as bot:
        await agent.connect()
        for timeout, text in [
            ("5", "`timeout` must be a number of seconds, not str"),
            (-1, "`timeout` is -1; it must be a number of seconds above 0"),
            (0, "`timeout` is 0; it must be a number of seconds above 0"),
        ]:
            with pytest.raises((TypeError, ValueError), match=text):
                await bot.call("good", timeout=timeout)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="`owner_wait` is -1; it must be a number of seconds of 0 or more"):
            await bot.call("good", owner_wait=-1)
        with pytest.raises(UnknownTool):
            await bot.call("good", owner_wait=0)
    with pytest.raises(ValueError, match='`choose` is \'frist\'; it must be one of "nobody", "first", "last", "last_heard"'):
        Assistant(room(), choose="frist")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r'`times\["grace"\]` must be a number of seconds, not str'):
        Client(room(), times={"grace": "5"})  # type: ignore[dict-item]


async def _async_rule(_: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        (Client, {"times": {"grace_period": 1}}, '`times`: there is no option "grace_period"; the options are announcement'),
        (Client, {"caps": {"running_job": 1}}, '`caps`: there is no option "running_job" (did you mean "running_jobs"?)'),
        (Client, {"caps": {"running_jobs": "many"}}, '`caps["running_jobs"]` must be a whole number of 0 or more, not str'),
        (Client, {"caps": {"running_jobs": -1}}, '`caps["running_jobs"]` must be a whole number of 0 or more, not -1'),
        (Client, {"version": 1}, "`version` must be a text, not 1"),
        (Client, {"fast_lane": "no"}, "`fast_lane` must be True or False, not str"),
        (Client, {"threads": 0}, "`threads` must be a whole number of 1 or more, not 0"),
        (Client, {"consent": "yes"}, "`consent` must be a function, not str"),
        (Client, {"assistant": 5}, "`assistant` must be a text, not 5"),
        (Assistant, {"clients": "phone"}, "`clients` must be a list, not str"),
        (Assistant, {"pins": ["lamp"]}, "`pins` must be a dictionary, not list"),
        (Assistant, {"pins": {"lamp": 5}}, '`pins["lamp"]` must be a text, not 5'),
        (Assistant, {"admit": "phone"}, "`admit` must be a function, not str"),
        (Assistant, {"admit": _async_rule}, "`admit` must be a plain function, not an `async` one"),
        (Assistant, {"allow_stop": _async_rule}, "`allow_stop` must be a plain function, not an `async` one"),
        (Assistant, {"choose": _async_rule}, "`choose` must be a plain function, not an `async` one"),
        (Assistant, {"admit_only_roles": "yes"}, "`admit_only_roles` must be True or False, not str"),
    ],
)
def test_option_of_a_participant_that_cannot_be_raises(kind: Any, options: Any, text: str) -> None:
    @in_loop
    async def make() -> None:
        with pytest.raises((TypeError, ValueError)) as raised:
            kind(room(), **options)
        assert text in str(raised.value)

    make()


@in_loop
async def test_type_that_needs_pydantic_raises_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "pydantic":
            raise ImportError(name)
        return imports(name, *args, **kwargs)

    async def when(at: set[int]) -> None:
        """Takes a set."""

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(TypeError, match='tool "when": the type .* needs pydantic 2, which is not installed'):
        Client(room(), [when])


@in_loop
async def test_second_participant_on_a_room_raises() -> None:
    phone = room()
    async with Client(phone):
        for kind in (Client, Assistant):
            with pytest.raises(RuntimeError, match="this room already has a Client; close it before you create a"):
                kind(phone)
    async with Assistant(phone):
        with pytest.raises(RuntimeError, match="already has an Assistant"):
            Assistant(phone)


@in_loop
async def test_room_is_free_when_the_last_packets_of_its_participant_are_sent() -> None:
    phone = room()
    client = Client(phone)
    closing = asyncio.ensure_future(client.aclose())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="already has a Client; close it before"):
        Client(phone)
    await closing
    await Client(phone).aclose()


@in_loop
async def test_livekit_that_is_too_old_raises_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rtc, "__version__", "1.1.20")
    with pytest.raises(ImportError, match=r"livekit 1\.1\.20 is too old; toolbridge needs 1\.1\.21 or later"):
        Client(room())
    monkeypatch.setattr(rtc, "__version__", "1.10.0rc1")
    await Client(room()).aclose()


@in_loop
async def test_what_is_no_room_raises() -> None:
    with pytest.raises(TypeError, match="must be a livekit.rtc.Room, not dict"):
        Client({})  # type: ignore[arg-type]


def test_room_of_another_loop_raises() -> None:
    other = asyncio.new_event_loop()

    async def run() -> None:
        phone = room()
        phone._loop = other
        with pytest.raises(RuntimeError, match=f"is created on .*, but the room belongs to .* at {id(other):#x}"):
            Client(phone)
        return None

    asyncio.run(run())
    other.close()

    async def make() -> FakeRoom:
        return room()

    with pytest.raises(RuntimeError, match="create a Client in a coroutine"):
        Client(asyncio.run(make()))


@in_loop
async def test_setting_that_the_core_refuses_raises() -> None:
    phone = room()
    await phone.connect()
    with pytest.raises(ValueError, match="config.pins"):
        Assistant(phone, pins={"no name": "phone"})
    await Client(phone).aclose()


@in_loop
async def test_toolset_without_livekit_agents_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "livekit.agents", None)
    monkeypatch.delitem(sys.modules, "toolbridge.agents", raising=False)
    async with Assistant(room()) as bot:
        with pytest.raises(ImportError, match=r'needs livekit-agents 1\.8\.9 or later: pip install "toolbridge\[agents\]"'):
            bot.toolset()


def test_text_of_a_join_that_failed_names_no_setting_of_rust() -> None:
    text = (
        "TLS connection to sfu:443 failed: unknown; for a private certificate authority, pass its root certificate "
        "(`ConnectOptions::root_certificates`)"
    )
    assert in_python(text).endswith("for a private certificate authority, add its root certificate to those of the system")
    assert "ConnectOptions" not in in_python("join timed out; try again, or raise `ConnectOptions::join_timeout`")


def test_import_loads_neither_livekit_nor_pydantic() -> None:
    program = "import sys, toolbridge; print([it for it in ('livekit', 'pydantic') if it in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
