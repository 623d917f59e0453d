"""How functions become tools: their docstrings, types and results."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid
from typing import Any, Literal, NamedTuple, Optional

import pydantic
import pytest
import typing_extensions
from memory import Ends, in_loop
from toolbridge import ToolContext, ToolFailed, tool
from toolbridge._tool import name_tools


def described(run: Any) -> Any:
    (named,) = name_tools([run]).values()
    return named.core


def google(city: str, unit: Literal["C", "F"] = "C") -> str:
    """Returns the weather.

    It asks a service.

    Args:
        city: The city's name,
            in English
        unit (str): Of the temperature

    Returns:
        A sentence.
    """
    return city


def sphinx(city: str, unit: str = "C") -> str:
    """Returns the weather.

    :param city: The city's name,
        in English
    :param str unit: Of the temperature
    :returns: A sentence.
    """
    return city


def numpy(city: str, unit: str = "C") -> str:
    """Returns the weather.

    Parameters
    ----------
    city : str
        The city's name,
        in English
    unit
        Of the temperature

    Returns
    -------
    str
        A sentence.
    """
    return city


@pytest.mark.parametrize("run", [google, sphinx, numpy])
def test_docstring_describes_the_parameters(run: Any) -> None:
    core = described(run)
    properties = core["inputSchema"]["properties"]
    assert properties["city"]["description"] == "The city's name, in English"
    assert properties["unit"]["description"] == "Of the temperature"
    assert core["description"].startswith("Returns the weather.")
    assert "city" not in core["description"] and "Args" not in core["description"] and "sentence" in core["description"]


def test_docstring_without_such_sections_stays_as_it_is() -> None:
    def run(args: str) -> None:
        """Runs it.

        Note: args are words.
        """

    assert described(run)["description"] == "Runs it.\n\nNote: args are words."


class Kiosk:
    def __init__(self) -> None:
        self.erased: list[str] = []

    @tool(destructive=True)
    async def erase(self, name: str) -> list[str]:
        """Erases a record."""
        self.erased.append(name)
        return self.erased


@in_loop
async def test_method_is_a_tool_of_its_object() -> None:
    kiosk = Kiosk()
    assert described(kiosk.erase)["destructive"] is True
    assert await kiosk.erase("x") == ["x"]
    async with Ends([kiosk.erase], client={"consent": lambda question: True}) as ends:
        assert await ends.bot.call("erase", {"name": "y"}) == {"value": ["x", "y"]}


@in_loop
async def test_context_may_be_optional() -> None:
    def run(name: str, context: Optional[ToolContext] = None) -> str:
        """Runs it."""
        return "none" if context is None else context.caller

    assert list(described(run)["inputSchema"]["properties"]) == ["name"]
    async with Ends([run]) as ends:
        assert await ends.bot.call("run", {"name": "x"}) == {"value": "agent"}


@in_loop
async def test_parameters_may_have_names_that_a_model_cannot_have() -> None:
    def run(_id: pydantic.PositiveInt, model_config: str = "a", copy: str = "b") -> str:
        """Runs it."""
        return f"{_id} {model_config} {copy}"

    assert list(described(run)["inputSchema"]["properties"]) == ["_id", "model_config", "copy"]
    async with Ends([run]) as ends:
        assert await ends.bot.call("run", {"_id": 3, "copy": "c"}) == {"value": "3 a c"}
        with pytest.raises(ToolFailed) as error:
            await ends.bot.call("run", {"_id": 0})
        assert error.value.code == "invalid_parameters" and "_id" in str(error.value)


@in_loop
async def test_default_of_pydantic_is_its_value() -> None:
    def run(count: int = pydantic.Field(5, ge=1, description="How many")) -> int:
        """Runs it."""
        return count

    assert described(run)["inputSchema"]["properties"]["count"]["description"] == "How many"
    async with Ends([run]) as ends:
        assert await ends.bot.call("run") == {"value": 5}
        assert await ends.bot.call("run", {"count": 7}) == {"value": 7}
        with pytest.raises(ToolFailed):
            await ends.bot.call("run", {"count": 0})


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Meeting:
    when: datetime.datetime


class Move(typing_extensions.TypedDict):
    to: str


class Step(NamedTuple):
    by: int


@dataclasses.dataclass
class Place:
    x: int
    room: str = "hall"


@in_loop
async def test_dataclasses_and_typed_dictionaries_are_parameters_beside_renamed_ones() -> None:
    def go(place: Place, moves: list[Move], step: Step, model_config: int, to: str = "me") -> dict[str, Any]:
        """Goes."""
        return {"all": [place.x, place.room, moves[0]["to"], step.by, model_config, to]}

    async with Ends([go]) as ends:
        arguments = {"place": {"x": 1}, "moves": [{"to": "door"}], "step": [2], "model_config": 3}
        assert await ends.bot.call("go", arguments) == {"all": [1, "hall", "door", 2, 3, "me"]}
        with pytest.raises(ToolFailed, match="place.x"):
            await ends.bot.call("go", {**arguments, "place": {"x": "far"}})


@in_loop
async def test_results_that_pydantic_knows_arrive() -> None:
    now = datetime.datetime(2026, 1, 2, 3, 4, 5)
    results: dict[str, tuple[Any, Any]] = {
        "time": (now, "2026-01-02T03:04:05"),
        "day": (now.date(), "2026-01-02"),
        "price": (decimal.Decimal("1.50"), "1.50"),
        "color": (Color.RED, "red"),
        "id": (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        "path": (pathlib.Path("/x"), "/x"),
        "nested": ([Meeting(now)], [{"when": "2026-01-02T03:04:05"}]),
    }

    def run(which: str) -> Any:
        """Runs it."""
        return results[which][0] if which in results else {"bytes": b"x", "error": ValueError("x")}[which]

    async with Ends([run]) as ends:
        for which, (_, expected) in results.items():
            assert await ends.bot.call("run", {"which": which}) == {"value": expected}
        for which in ("bytes", "error"):
            with pytest.raises(ToolFailed) as error:
                await ends.bot.call("run", {"which": which})
            assert error.value.code == "execution_error"


