"""The two readers of type hints: pydantic, and our own, which reads the basic ones without it."""

from __future__ import annotations

import datetime
import enum
import functools
import math
from typing import Annotated, Any, Literal, Optional, Union

import pydantic
import pytest
from memory import Ends, in_loop
from toolbridge import ToolContext, ToolFailed, tool
from toolbridge import _schema as schemas
from toolbridge._errors import Invalid
from toolbridge._tool import name_tools

MISSING = object()

#: Values that JSON has, in which the integer 1 and the number 1.0 are the same.
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 1.0, 1.5, 2**40, 2**63, 1e300, "", "a", "b", "1", "1.0", "true", "null", [], [1], [1.0], ["1"], [True],
    [None], [[1]], ["a", 1], {}, {"a": 1}, {"a": "1"}, {"a": True}, {"a": None}, {"1": 1.0}, {"a": [1]}, [{"a": 1}],
]  # fmt: skip

BASIC: list[Any] = [
    bool, int, float, str, None, Any, list, dict, list[int], list[str], list[float], list[bool], list[Any], list[list[int]],
    list[Optional[int]], dict[str, int], dict[str, float], dict[str, Any], dict[str, list[int]], list[dict[str, int]],
    Optional[bool], Optional[int], Optional[str], Optional[list[int]], Union[int, str], Union[float, int], Union[bool, str, None],
    Union[str, list[str]], Union[int, dict[str, int]], int | None, Literal["a"], Literal["a", "b"], Literal[1, 2], Literal[True],
    Literal[1, "a"], Literal[True, "a"], Literal["a", None], Optional[Literal["a", "b"]], Annotated[int, "A number"],
    Annotated[Optional[str], "A text", "or nothing"], Annotated[str, 5], list[Annotated[int, "A number"]], dict[str, Annotated[str, "A text"]],
    Union[Annotated[int, "A number"], str],
]  # fmt: skip

DEFAULTS: list[Any] = [MISSING, None, True, 1, 1.5, "a", [], [1], {}, {"a": 1}, object(), math.nan]


def read(reader: Any, hint: Any, default: Any = MISSING) -> Any:
    import inspect

    return reader("run", {"it": (hint, inspect.Parameter.empty if default is MISSING else default)})


def outcome(check: Any, value: Any) -> Any:
    try:
        return check({"it": value})["it"]
    except Invalid as error:
        return str(error)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, and have equal types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.mark.parametrize("hint", BASIC, ids=str)
def test_both_readers_accept_and_convert_the_same(hint: Any) -> None:
    (by_hand, ours), (by_pydantic, theirs) = read(schemas._by_hand, hint), read(schemas._by_pydantic, hint)
    assert by_hand == by_pydantic
    for value in VALUES:
        mine, other = outcome(ours, value), outcome(theirs, value)
        assert same(mine, other), (value, mine, other)


@pytest.mark.parametrize("default", DEFAULTS, ids=str)
def test_both_readers_show_the_same_defaults(default: Any) -> None:
    for hint in (Any, Optional[str]):
        assert read(schemas._by_hand, hint, default)[0] == read(schemas._by_pydantic, hint, default)[0]


def test_both_readers_refuse_unknown_and_missing_arguments_with_the_same_text() -> None:
    for reader in (schemas._by_hand, schemas._by_pydantic):
        _, check = read(reader, int)
        for arguments, text in (({}, "it: it is missing"), ({"it": 1, "more": 1}, "more: there is no such argument")):
            with pytest.raises(Invalid, match=f"^{text}$"):
                check(arguments)


def test_strictness() -> None:
    for reader in (schemas._by_hand, schemas._by_pydantic):
        _, check = read(reader, int)
        assert same(check({"it": 1.0})["it"], 1)
        for wrong in ("1", True, 1.5, None):
            with pytest.raises(Invalid):
                check({"it": wrong})


def described(run: Any) -> Any:
    (named,) = name_tools([run]).values()
    return named.core["inputSchema"]


def test_one_hint_that_needs_pydantic_changes_nothing_for_the_others() -> None:
    def basic(name: Annotated[str, "The file's name"], count: int = 1) -> None:
        """Runs it."""

    def mixed(name: Annotated[str, "The file's name"], count: int = 1, when: Optional[datetime.date] = None) -> None:
        """Runs it."""

    properties = described(mixed)["properties"]
    assert properties.pop("when")["anyOf"][0] == {"type": "string", "format": "date"}
    assert properties == described(basic)["properties"]


class Color(enum.Enum):
    RED = "red"


class Item(pydantic.BaseModel):
    count: int = pydantic.Field(ge=1)


@in_loop
async def test_types_of_pydantic_are_read_from_json() -> None:
    def run(
        when: datetime.date, color: Color, item: Item, pair: tuple[int, str], some: set[int], level: Annotated[int, pydantic.Field(le=9)] = 5
    ) -> str:
        """Runs it."""
        return repr((when, color, item, pair, some, level))

    right: dict[str, Any] = {"when": "2026-01-02", "color": "red", "item": {"count": 1}, "pair": [1, "a"], "some": [1]}
    async with Ends([run]) as ends:
        expected = repr((datetime.date(2026, 1, 2), Color.RED, Item(count=1), (1, "a"), {1}, 5))
        assert await ends.bot.call("run", right) == {"value": expected}
        for wrong in ({"when": 5}, {"color": "blue"}, {"item": {"count": 0}}, {"pair": ["1", "a"]}, {"some": ["1"]}, {"level": 10}):
            with pytest.raises(ToolFailed) as error:
                await ends.bot.call("run", {**right, **wrong})
            assert error.value.code == "invalid_parameters" and next(iter(wrong)) in str(error.value)


def test_without_pydantic_other_types_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(when: datetime.date) -> None:
        """Runs it."""

    monkeypatch.setattr(schemas, "_has_pydantic", lambda: False)
    with pytest.raises(TypeError, match='tool "run": the type date needs pydantic 2, which is not installed'):
        described(run)


async def base(x: int, y: int, cx: Optional[ToolContext] = None) -> int:
    """Adds two numbers.

    Args:
        x: The first
    """
    return x + y


class Adds:
    async def __call__(self, x: int, y: int = 2) -> int:
        """Adds two numbers."""
        return x + y


@pytest.mark.parametrize(
    "run",
    [
        functools.partial(base, y=2),
        functools.partial(functools.partial(base, y=3), y=2),
        tool(functools.partial(base, y=2)),
        tool(name="base")(functools.partial(lambda y, x: x + y, 2)),
        tool(name="base", description="Adds")(functools.partial(Adds(), y=2)),
        tool(name="base")(Adds()),
        tool(name="base", schema={"type": "object"})(functools.partial(lambda add, arguments: arguments["x"] + add, 2)),
    ],
    ids=["keyword", "twice", "tool", "positional", "of an object", "object", "with a schema"],
)
@in_loop
async def test_partials_and_objects_are_tools(run: Any) -> None:
    if "lambda" in str(getattr(run, "_run", "")) and "schema" not in run._options:
        run._options["description"] = "Adds"
        run._run.func.__annotations__.update(x=int, y=int)
    elif "schema" in getattr(run, "_options", {}):
        run._options["description"] = "Adds"
    async with Ends([run]) as ends:
        assert await ends.bot.call("base", {"x": 1}) == {"value": 3}


def test_value_that_a_partial_has_is_not_shown() -> None:
    properties = described(functools.partial(base, y=2))["properties"]
    assert properties == {"x": {"type": "integer", "description": "The first"}}
    assert list(described(functools.partial(base, 1))["properties"]) == ["y"]
