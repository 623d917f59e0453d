# mypy: ignore-errors
"""What the APIs of models are given for the tools of a room, by livekit-agents' own conversions. Needs livekit-agents."""

from __future__ import annotations

import json

import pydantic
import pytest
from memory import Ends, FakeRoom, Memory, in_loop
from toolbridge import Assistant, Client, tool

pytest.importorskip("livekit.agents")

from livekit.agents import Agent, AgentSession, llm
from toolbridge._model_schema import for_models, merge

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


def schemas_in(schema, place="it"):
    yield place, schema
    for name, item in schema.get("properties", {}).items():
        yield from schemas_in(item, f"{place}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from schemas_in(schema[name], f"{place}.{name}")
    for item in schema.get("anyOf", ()):
        yield from schemas_in(item, f"{place}.anyOf")


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_has_only_what_all_apis_accept(name: str) -> None:
    loose = for_models(SCHEMAS[name])
    assert loose["type"] == "object" and isinstance(loose["properties"], dict)
    assert not {"anyOf", "oneOf", "allOf", "enum", "not"} & set(loose)
    for place, schema in schemas_in(loose):
        assert not {"$ref", "$defs", "definitions", "oneOf", "allOf", "const", "prefixItems", "not", "if"} & set(schema), place
        assert isinstance(schema.get("type", ""), str), place
        assert all(isinstance(it, str) for it in schema.get("enum", ())), place
        assert schema.get("type") != "array" or isinstance(schema["items"], dict), place
        assert set(schema.get("required", ())) <= set(schema.get("properties", {})), place
    assert for_models(loose) == loose


def test_loosened_schema_says_what_it_cannot_express() -> None:
    given = {name: for_models(arguments(it))["properties"]["given"] for name, it in DIFFICULT.items()}
    assert given["nullable"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "A text"}
    assert given["numbers"] == {"type": "integer", "description": "One of 1, 2."}
    assert given["mixed values"]["description"] == 'One of true, "auto".'
    assert given["all of"] == {"type": "string", "enum": ["red"], "description": "Of the lamp"}
    assert given["unknown keywords"] == {"type": "string", "description": "Format: date."}
    assert given["old reference"] == {"type": "string"}
    assert given["recursive"]["properties"]["children"] == {"type": "array", "items": {"type": "object"}}
    union = for_models(DIFFICULT_TOPS["union"])
    assert union["properties"]["a"] == {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    assert union["required"] == ["a"]


def test_references_that_double_at_each_level_end() -> None:
    both = {f"D{at}": {"type": "object", "properties": {it: {"$ref": f"#/$defs/D{at + 1}"} for it in "ab"}} for at in range(60)}
    loose = for_models({"type": "object", "properties": {"it": {"$ref": "#/$defs/D0"}}, "$defs": both})
    assert len(json.dumps(loose)) < 1_000_000


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
async def test_tool_that_clients_describe_differently_shows_what_each_takes() -> None:
    async def on_phone(on: bool, level: int = 1) -> str:
        """Switches the torch."""
        return f"torch {on}"

    async def on_tv(level: str, room: str) -> str:
        """Dims a lamp."""
        return f"lamp {level} {room}"

    async with TwoClients(tool(name="lamp")(on_phone), tool(name="lamp")(on_tv)) as ends:
        (shown,) = ends.bot.toolset().tools
        parameters, description = shown.info.raw_schema["parameters"], shown.info.raw_schema["description"]
        assert set(parameters["properties"]) == {"on", "level", "room", "owner"}
        assert parameters["required"] == ["owner"]
        assert [it["type"] for it in parameters["properties"]["level"]["anyOf"]] == ["integer", "string"]
        assert '- "phone": Switches the torch. Arguments: `on`, `level` (optional).' in description
        assert '- "tv": Dims a lamp. Arguments: `level`, `room`.' in description


@in_loop
async def test_tool_that_clients_describe_equally_shows_one_schema() -> None:
    async def lamp(on: bool) -> str:
        """Switches the lamp."""
        return ""

    async with TwoClients(lamp, lamp) as ends:
        (shown,) = ends.bot.toolset().tools
        assert shown.info.raw_schema["description"] == "Switches the lamp."
        assert shown.info.raw_schema["parameters"]["required"] == ["on", "owner"]


def test_merged_schema_requires_what_all_require() -> None:
    first = {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a", "b"]}
    second = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
    assert merge([first, second]) == {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]}


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
        assert shown.info.name == "_3d_view"
