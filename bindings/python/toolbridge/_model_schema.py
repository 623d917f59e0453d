"""Makes the JSON Schemas of tools acceptable to the APIs of all models.

An agent sends one schema to whichever model it has, and an API that refuses the schema of one tool refuses the whole request.
So what some API refuses becomes a looser schema here, with a note in its description where a text can say it. Nothing is lost: the
client that runs a tool checks the arguments by its own schema.

OpenAI refuses unions at the top and arrays without ``items``. The conversion for Gemini Live fails at recursive references, lists of
types, types that it does not know, and enumerated values that are not texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ._json import JsonObject

#: The largest schema without references, in schemas within it, and its greatest depth. What exceeds them accepts anything.
_MAX_SCHEMAS = 2_000
_MAX_DEPTH = 24

_NUMBER = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

#: The keywords that are kept if their values are numbers, by the type that they are about.
_NUMBERS: dict[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength"),
    "integer": _NUMBER,
    "number": _NUMBER,
    "boolean": (),
    "null": (),
    "array": ("minItems", "maxItems"),
    "object": (),
}


def for_models(schema: JsonObject) -> JsonObject:
    """Returns a schema of arguments that the APIs of all models accept."""
    loose = _Reader(schema).loosen(schema, (), 0)
    if "anyOf" in loose:
        loose = merge([it for it in loose["anyOf"] if it.get("type") == "object"])
    return {**loose, "type": "object", "properties": loose.get("properties", {})}


def merge(schemas: Sequence[JsonObject]) -> JsonObject:
    """Returns a schema that accepts all arguments which one of these schemas of objects accepts."""
    properties: dict[str, list[JsonObject]] = {}
    for schema in schemas:
        for name, item in schema.get("properties", {}).items():
            found = properties.setdefault(name, [])
            if item not in found:
                found.append(item)
    merged: JsonObject = {"type": "object", "properties": {name: _any_of(found) for name, found in properties.items()}}
    required = [name for name in properties if all(name in schema.get("required", ()) for schema in schemas)]
    if required:
        merged["required"] = required
    if schemas and all(schema.get("additionalProperties") is False for schema in schemas):
        merged["additionalProperties"] = False
    return merged


def _any_of(schemas: Sequence[JsonObject]) -> JsonObject:
    flat: list[JsonObject] = []
    for schema in schemas:
        parts = schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
        flat.extend(part for part in parts if part not in flat)
    return flat[0] if len(flat) == 1 else {"anyOf": flat}


class _Reader:
    def __init__(self, root: JsonObject) -> None:
        self._root = root
        self._left = _MAX_SCHEMAS

    def loosen(self, schema: Any, inside: tuple[str, ...], depth: int) -> JsonObject:
        """``inside`` has the references that lead here."""
        self._left -= 1
        if not isinstance(schema, dict) or self._left < 0 or depth > _MAX_DEPTH:
            return {}
        ref = schema.get("$ref")
        if isinstance(ref, str):
            target = self._resolve(ref)
            schema = {name: item for name, item in schema.items() if name != "$ref"}
            if ref in inside:  # one that contains itself
                target = {"type": target["type"]} if isinstance(target.get("type"), str) else {}
            return self.loosen({**target, **schema}, (*inside, ref), depth + 1)
        for part in _list(schema.get("allOf")):
            schema = _both(schema, self.loosen(part, inside, depth + 1))
        types = [it for it in _list(schema.get("type")) or [schema.get("type")] if isinstance(it, str) and it in _NUMBERS]
        values = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
        notes = []
        if values:
            types = list(dict.fromkeys(map(_type_of, values)))
            if any(it not in ("string", "null") for it in types):
                notes.append(f"One of {', '.join(json.dumps(it, ensure_ascii=False) for it in values)}.")
        if not types:
            types = ["object"] if "properties" in schema else ["array"] if {"items", "prefixItems"} & set(schema) else []
        if isinstance(schema.get("format"), str):
            notes.append(f"Format: {schema['format']}.")
        loose = {name: schema[name] for name in ("title", "description") if isinstance(schema.get(name), str)}
        if "default" in schema:
            loose["default"] = schema["default"]
        if notes:
            loose["description"] = " ".join([*filter(None, [loose.get("description")]), *notes])
        parts = [] if "properties" in schema else _list(schema.get("anyOf")) or _list(schema.get("oneOf"))
        if parts:
            of_type = {"type": types[0]} if len(types) == 1 else {}
            union = _any_of([self.loosen({**of_type, **it} if isinstance(it, dict) else it, inside, depth + 1) for it in parts])
        else:
            union = _any_of([self._of_type(it, schema, values, inside, depth) for it in types]) if types else {}
        return {**union, **loose}

    def _of_type(self, name: str, schema: JsonObject, values: list[Any], inside: tuple[str, ...], depth: int) -> JsonObject:
        loose: JsonObject = {"type": name, **{it: schema[it] for it in _NUMBERS[name] if isinstance(schema.get(it), (int, float))}}
        if name == "string":
            if isinstance(schema.get("pattern"), str):
                loose["pattern"] = schema["pattern"]
            if values:
                loose["enum"] = [it for it in values if isinstance(it, str)]
        elif name == "array":
            firsts = [self.loosen(it, inside, depth + 1) for it in _list(schema.get("prefixItems"))]
            loose["items"] = _any_of(firsts) if firsts else self.loosen(schema.get("items"), inside, depth + 1)
        elif name == "object":
            properties = schema.get("properties")
            if isinstance(properties, dict):
                loose["properties"] = {it: self.loosen(of, inside, depth + 1) for it, of in properties.items()}
            required = [it for it in _list(schema.get("required")) if it in loose.get("properties", {})]
            if required:
                loose["required"] = required
            more = schema.get("additionalProperties")
            if more is not None:
                loose["additionalProperties"] = more if isinstance(more, bool) else self.loosen(more, inside, depth + 1)
        return loose

    def _resolve(self, ref: str) -> JsonObject:
        found: Any = self._root
        for part in ref.removeprefix("#").split("/")[1:]:
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}


def _both(schema: JsonObject, part: JsonObject) -> JsonObject:
    """Returns a schema that accepts what both accept, and perhaps more."""
    both = {**part, **schema}
    for name in ("properties", "required"):
        ours, theirs = schema.get(name), part.get(name)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            both[name] = {**theirs, **ours}
        elif isinstance(ours, list) and isinstance(theirs, list):
            both[name] = [*ours, *(it for it in theirs if it not in ours)]
    return both


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _type_of(value: Any) -> str:
    for kind, name in ((type(None), "null"), (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"
