# mypy: ignore-errors
"""What the APIs of models are given for the tools of a room, by livekit-agents' own conversions. Needs livekit-agents."""

from __future__ import annotations

import pydantic
import pytest
from memory import Ends, FakeRoom, Memory, in_loop
from toolbridge import Assistant, Client, tool

pytest.importorskip("livekit.agents")

from livekit.agents import Agent, AgentSession, llm

TREE = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}

#: Schemas of one parameter that some API or its conversion refuses.
DIFFICULT = {
    "nullable": {"type": ["string", "null"], "description": "A text"},
    "several types": {"type": ["string", "integer", "array"], "items": {"type": "string"}},
    "null first": {"enum": [None, "a"]},
    "only null": {"type": "null"},
    "mixed values": {"enum": [True, "auto"]},
    "numbers": {"type": "integer", "enum": [1, 2]},
    "constant": {"const": 1},
    "constant object": {"const": {"a": 1}},
    "one of": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "all of": {"allOf": [{"$ref": "#/$defs/Color"}, {"description": "Of the lamp"}]},
    "array without items": {"type": "array"},
    "tuple": {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "minItems": 2},
    "recursive": {"$ref": "#/$defs/Tree"},
    "old reference": {"$ref": "#/definitions/Old"},
    "pointer": {"$ref": "#/properties/other"},
    "missing reference": {"$ref": "#/$defs/Missing"},
    "foreign reference": {"$ref": "https://example.com/schema.json"},
    "accepts anything": True,
    "accepts nothing": False,
    "unknown type": {"type": "date"},
    "unknown keywords": {"type": "string", "format": "date", "readOnly": True, "x-order": 1, "not": {"const": "a"}},
    "conditional": {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "required but not there": {"type": "object", "properties": {}, "required": ["a"]},
    "wrong values": {"type": "string", "minLength": "one", "pattern": 1, "description": 5, "title": None},
    "wrong structure": {"type": "object", "properties": [], "required": "a"},
    "key": {"type": "object", "properties": {"$filter": {"type": "string"}, "größe": {"type": "number"}}, "required": ["größe"]},
}

#: Schemas of all arguments that some API refuses.
DIFFICULT_TOPS = {
    "no properties": {"type": "object"},
    "union": {
        "type": "object",
        "oneOf": [
            {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a", "b"]},
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        ],
    },
    "either of two": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "reference": {"type": "object", "$ref": "#/$defs/Tree", "$defs": {"Tree": TREE}},
    "all of": {"type": "object", "allOf": [{"properties": {"a": {"type": "string"}}}, {"required": ["a"]}]},
    "foreign": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "not": {}, "enum": [{}]},
}


def arguments(parameter):
    return {
        "type": "object",
        "properties": {"given": parameter, "other": {"type": "string"}},
        "required": ["given"],
        "$defs": {"Tree": TREE, "Color": {"type": "string", "enum": ["red"]}},
        "definitions": {"Old": {"type": "string"}},
    }


SCHEMAS = {**{name: arguments(it) for name, it in DIFFICULT.items()}, **DIFFICULT_TOPS}


def tools():
    return [
        tool(name=name.replace(" ", "-"), description="Does it.", schema=schema)(lambda arguments: None)
        for name, schema in SCHEMAS.items()
    ]


def convert(tools, format, **more):
    return llm.ToolContext(list(tools)).parse_function_tools(format, **more)


@in_loop
async def test_all_tools_are_converted_for_each_api() -> None:
    async with Ends(tools()) as ends:
        made = ends.bot.toolset().tools
        assert len(made) == len(SCHEMAS)
        for format in ("openai", "openai.responses", "anthropic", "aws"):
            assert len(convert(made, format)) == len(made)
        from openai.types.chat import ChatCompletionToolParam
        from openai.types.responses import FunctionToolParam

        for format, kind in (("openai", ChatCompletionToolParam), ("openai.responses", FunctionToolParam)):
            for it in convert(made, format):
                pydantic.TypeAdapter(kind).validate_python(it)
        assert all(it["strict"] is False for it in convert(made, "openai.responses"))


@in_loop
async def test_all_tools_are_converted_for_gemini() -> None:
    import livekit.plugins.google.utils  # noqa: F401  registers the conversion
    from google.genai import types

    async with Ends(tools()) as ends:
        for tool in ends.bot.toolset().tools:
            for is_json_schema in (True, False):
                (it,) = convert([tool], "google", use_parameters_json_schema=is_json_schema)
                types.FunctionDeclaration.model_validate(it)


class TwoClients:
    """An assistant, and two clients that offer a tool of the same name."""

    def __init__(self, phone, tv):
        self.memory = Memory()
        self.agent = FakeRoom(self.memory, "agent", "assistant", kind=4)
        self.bot = Assistant(self.agent)
        self.rooms = [FakeRoom(self.memory, identity, "client") for identity in ("phone", "tv")]
        self.clients = [Client(room, [it]) for room, it in zip(self.rooms, (phone, tv))]

    async def __aenter__(self):
        for room in (*self.rooms, self.agent):
            await room.connect()
        for identity in ("phone", "tv"):
            await self.bot.ready(identity)
        return self

    async def __aexit__(self, *_):
        for it in (*self.clients, self.bot):
            await it.aclose()


@in_loop
async def test_tools_that_clients_describe_differently_are_both_shown() -> None:
    async def on_phone(on: bool, level: int = 1) -> str:
        """Switches the torch."""
        return f"torch {on}"

    async def on_tv(level: str, room: str) -> str:
        """Dims a lamp."""
        return f"lamp {level} {room}"

    async with TwoClients(tool(name="lamp")(on_phone), tool(name="lamp")(on_tv)) as ends:
        shown = {it.info.name: it.info.raw_schema for it in ends.bot.toolset().tools}
        assert [(it["description"], set(it["parameters"]["properties"])) for it in shown.values()] == [
            ("Switches the torch.", {"on", "level"}),
            ("Dims a lamp.", {"level", "room"}),
        ]
        assert list(shown) == ["phone__lamp", "tv__lamp"]
        called = await ends.bot.call("tv__lamp", {"level": "low", "room": "hall"}, model=True)
        assert called == {"value": "lamp low hall"}


@in_loop
async def test_tool_that_clients_describe_equally_shows_one_schema() -> None:
    async def lamp(on: bool) -> str:
        """Switches the lamp."""
        return ""

    async with TwoClients(lamp, lamp) as ends:
        (shown,) = ends.bot.toolset().tools
        assert shown.info.raw_schema["description"] == "Switches the lamp."
        assert shown.info.raw_schema["parameters"]["required"] == ["on", "owner"]


class Realtime(llm.RealtimeModel):
    def __init__(self):
        pass

    def session(self, **_):
        raise NotImplementedError

    async def aclose(self):
        pass


@in_loop
async def test_realtime_model_is_given_no_strict() -> None:
    async def echo(text: str) -> str:
        """Returns the text."""
        return text

    async with Ends([echo]) as ends:
        session = AgentSession(vad=None)
        session.update_agent(Agent(instructions="x", llm=Realtime()))
        (shown,) = ends.bot.toolset(session=session).tools
        assert "strict" not in shown.info.raw_schema


@in_loop
async def test_name_begins_as_gemini_wants_it() -> None:
    async with Ends([tool(name="3d.view", description="Shows it")(lambda: None)]) as ends:
        (shown,) = ends.bot.toolset().tools
        assert shown.info.name == "_3d__view"


@in_loop
async def test_tool_gets_its_own_keys() -> None:
    def measure(arguments):
        return arguments

    schema = {"type": "object", "properties": {"größe": {"type": "number"}, "in": {"type": "object", "properties": {"$filter": {}}}}}
    async with Ends([tool(name="measure", description="Measures", schema=schema)(measure)]) as ends:
        (shown,) = ends.bot.model_tools()
        assert list(shown.parameters["properties"]) == ["gr__e", "in"]
        assert shown.owners == ["phone"]
        fitted = {"gr__e": 1, "in": {"_filter": "a"}}
        assert await ends.bot.call("measure", fitted, model=True) == {"größe": 1, "in": {"$filter": "a"}}
        assert await ends.bot.call("measure", {"gr__e": 1}) == {"gr__e": 1}
