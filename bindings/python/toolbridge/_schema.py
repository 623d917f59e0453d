"""JSON Schemas of functions, from their type hints, and the check of arguments."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ._errors import Invalid
from ._json import JsonObject
from ._record import Record


class Parameters(Record):
    """The parameters of a function that runs a tool."""

    schema: JsonObject
    #: Checks arguments, and returns them as the function takes them. Raises ``Invalid``.
    check: Callable[[JsonObject], JsonObject]
    #: The parameter that gets the context, if there is one.
    context: str | None


def read_parameters(
    tool: str, run: Callable[..., object], context_type: type, about: Mapping[str, str]
) -> Parameters:
    """Reads the parameters of a function, with what is said about them. Raises ``TypeError``, which names the tool and the parameter."""
    try:
        hints = get_type_hints(run, include_extras=True)
    except Exception as error:
        raise TypeError(f'tool "{tool}": its type hints cannot be read: {error}') from error
    context: str | None = None
    found: dict[str, tuple[Any, Any]] = {}
    for name, parameter in inspect.signature(run).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f'tool "{tool}": the parameter "{name}" cannot be passed by its name')
        if _is_context(hints.get(name), context_type):
            context = name
        elif name not in hints:
            raise TypeError(f'tool "{tool}": the parameter "{name}" has no type hint; add one, or pass `schema`')
        else:
            found[name] = (hints[name], parameter.default)
    try:
        fields = {name: _Field.read(hint, default) for name, (hint, default) in found.items()}
    except _NotBasic as error:
        parameters = _by_pydantic(tool, found, context, str(error))
        _explain(parameters.schema, about)
        return parameters
    schema: JsonObject = {"type": "object", "properties": {name: field.schema for name, field in fields.items()}}
    required = [name for name, field in fields.items() if field.is_required]
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False
    _explain(schema, about)

    def check(arguments: JsonObject) -> JsonObject:
        for name in arguments:
            if name not in fields:
                raise Invalid(f"{name}: there is no such argument")
        for name in required:
            if name not in arguments:
                raise Invalid(f"{name}: it is missing")
        return {name: fields[name].check(value, name) for name, value in arguments.items()}

    return Parameters(schema, check, context)


def _is_context(hint: Any, context_type: type) -> bool:
    """Whether a parameter takes the context, also one that may be without it."""
    if get_origin(hint) in (Union, types.UnionType):
        return set(get_args(hint)) == {context_type, type(None)}
    return hint is context_type


def _explain(schema: JsonObject, about: Mapping[str, str]) -> None:
    """Adds what is said about the parameters, unless their hints say it."""
    properties = schema.get("properties", {})
    for name, text in about.items():
        if name in properties and "description" not in properties[name]:
            properties[name] = {**properties[name], "description": text}


class _NotBasic(Exception):
    """A hint that needs pydantic."""


class _Field(Record):
    schema: JsonObject
    is_required: bool
    check: Callable[[Any, str], Any]

    @classmethod
    def read(cls, hint: Any, default: Any) -> _Field:
        if type(default).__module__.partition(".")[0] == "pydantic":
            raise _NotBasic("of a default that is pydantic's")
        schema, check = _read(hint)
        if default is not inspect.Parameter.empty and _is_json(default):
            schema = {**schema, "default": default}
        return cls(schema, default is inspect.Parameter.empty, check)


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _read(hint: Any) -> tuple[JsonObject, Callable[[Any, str], Any]]:
    """Returns the JSON Schema of a hint, and the check of a value. Raises ``_NotBasic``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        schema, check = _read(arguments[0])
        if not all(isinstance(note, str) for note in arguments[1:]):
            raise _NotBasic(str(hint))
        return {**schema, "description": " ".join(arguments[1:])}, check
    if hint is Any:
        return {}, lambda value, place: value
    if hint is None or hint is type(None):
        return {"type": "null"}, _typed(lambda value: value is None, "null")
    if hint in _NAMES:
        return {"type": _NAMES[hint]}, _scalar(hint)
    if origin is Literal and all(isinstance(it, (str, int, bool, type(None))) for it in arguments):
        accepted = list(arguments)
        texts = ", ".join(map(repr, accepted))
        is_one = _typed(lambda value: any(value == it and type(value) is type(it) for it in accepted), f"one of {texts}")
        return {"enum": accepted}, is_one
    if origin in (Union, types.UnionType):
        return _union([_read(it) for it in arguments])
    if hint is list or origin is list:
        return _list(_read(arguments[0]) if arguments else None)
    if hint is dict or origin is dict:
        if arguments and arguments[0] is not str:
            raise _NotBasic(str(hint))
        return _dict(_read(arguments[1]) if arguments else None)
    raise _NotBasic(getattr(hint, "__name__", None) or str(hint))


def _typed(accepts: Callable[[Any], bool], name: str) -> Callable[[Any, str], Any]:
    def check(value: Any, place: str) -> Any:
        if not accepts(value):
            raise Invalid(f"{place}: it must be {name}")
        return value

    return check


def _scalar(hint: type) -> Callable[[Any, str], Any]:
    if hint is bool or hint is str:
        return _typed(lambda value: isinstance(value, hint), f"a {_NAMES[hint]}")

    def check(value: Any, place: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Invalid(f"{place}: it must be a number")
        if hint is float:
            return float(value)
        if isinstance(value, float):
            if not value.is_integer():
                raise Invalid(f"{place}: it must be a whole number")
            return int(value)
        return value

    return check


def _union(parts: list[tuple[JsonObject, Callable[[Any, str], Any]]]) -> tuple[JsonObject, Callable[[Any, str], Any]]:
    def check(value: Any, place: str) -> Any:
        reasons: list[str] = []
        for _, accepts in parts:
            try:
                return accepts(value, place)
            except Invalid as error:
                reasons.append(str(error))
        raise Invalid(", or ".join(dict.fromkeys(reasons)))

    return {"anyOf": [schema for schema, _ in parts]}, check


def _list(item: tuple[JsonObject, Callable[[Any, str], Any]] | None) -> tuple[JsonObject, Callable[[Any, str], Any]]:
    def check(value: Any, place: str) -> Any:
        if not isinstance(value, list):
            raise Invalid(f"{place}: it must be a list")
        return value if item is None else [item[1](it, f"{place}[{at}]") for at, it in enumerate(value)]

    return {"type": "array", **({} if item is None else {"items": item[0]})}, check


def _dict(item: tuple[JsonObject, Callable[[Any, str], Any]] | None) -> tuple[JsonObject, Callable[[Any, str], Any]]:
    def check(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise Invalid(f"{place}: it must be an object")
        return value if item is None else {key: item[1](it, f"{place}.{key}") for key, it in value.items()}

    return {"type": "object", **({} if item is None else {"additionalProperties": item[0]})}, check


def _by_pydantic(tool: str, hints: dict[str, tuple[Any, Any]], context: str | None, why: str) -> Parameters:
    """Reads the parameters with pydantic 2, which knows more types."""
    try:
        import pydantic
        from pydantic.fields import FieldInfo
    except ImportError:
        raise TypeError(f'tool "{tool}": the type {why} needs pydantic 2, which is not installed') from None
    if not pydantic.VERSION.startswith("2."):
        raise TypeError(f'tool "{tool}": the type {why} needs pydantic 2; {pydantic.VERSION} is installed')
    # Names that a model cannot have are aliases.
    fields, names = {}, {}
    for at, (name, (hint, default)) in enumerate(hints.items()):
        is_possible = not name.startswith(("_", "model_")) and not hasattr(pydantic.BaseModel, name)
        field = name if is_possible else f"parameter_{at}"
        names[field] = name
        fields[field] = (hint, ... if default is inspect.Parameter.empty else default)
    config = pydantic.ConfigDict(extra="forbid", alias_generator=names.__getitem__)
    # A default of pydantic's own is no value for the function.
    always = {name for name, (_, default) in hints.items() if isinstance(default, FieldInfo)}
    try:
        model: Any = pydantic.create_model(tool, __config__=config, **fields)  # type: ignore[call-overload]
        schema = model.model_json_schema()
    except Exception as error:
        raise TypeError(f'tool "{tool}": its type hints have no JSON Schema: {error}') from error

    def check(arguments: JsonObject) -> JsonObject:
        try:
            checked = model.model_validate(arguments)
        except pydantic.ValidationError as error:
            raise Invalid(_describe(error.errors(include_url=False, include_context=False, include_input=False))) from None
        given = checked.model_fields_set
        return {name: getattr(checked, field) for field, name in names.items() if field in given or name in always}

    return Parameters(schema, check, context)


#: At most this many problems are described.
_MAX_PROBLEMS = 8


def _describe(problems: Any) -> str:
    texts = []
    for problem in problems[:_MAX_PROBLEMS]:
        place = ".".join(str(part) for part in problem["loc"])
        texts.append(f"{place}: {problem['msg']}" if place else str(problem["msg"]))
    if len(problems) > _MAX_PROBLEMS:
        texts.append(f"{len(problems) - _MAX_PROBLEMS} more")
    return "; ".join(texts)
