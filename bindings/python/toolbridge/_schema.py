"""JSON Schemas of functions, from their type hints, and the check of arguments.

If pydantic 2 is installed, it reads all hints. Otherwise a reader of our own knows the basic ones. Of these, both make the same
schema, accept the same arguments, and refuse them with the same text.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from ._errors import Invalid
from ._json import JsonObject
from ._record import Record
from ._tool import without_partials


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
        hints = get_type_hints(_with_hints(run), include_extras=True)
    except Exception as error:
        raise TypeError(f'tool "{tool}": its type hints cannot be read: {error}') from error
    context: str | None = None
    found: dict[str, tuple[Any, Any]] = {}
    for name, parameter in inspect.signature(run).parameters.items():
        if isinstance(run, functools.partial) and name in run.keywords:
            continue  # it has its value
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f'tool "{tool}": the parameter "{name}" cannot be passed by its name')
        if _is_context(hints.get(name), context_type):
            context = name
        elif name not in hints:
            raise TypeError(f'tool "{tool}": the parameter "{name}" has no type hint; add one, or pass `schema`')
        else:
            found[name] = (hints[name], parameter.default)
    schema, check = (_by_pydantic if _has_pydantic() else _by_hand)(tool, found)
    _explain(schema, about)
    return Parameters(schema, check, context)


def _with_hints(run: Callable[..., object]) -> Callable[..., object]:
    """What has the type hints of a partial, or of an object with ``__call__``."""
    run = without_partials(run)
    return run if inspect.isroutine(run) or inspect.isclass(run) else type(run).__call__


def _by_hand(tool: str, hints: dict[str, tuple[Any, Any]]) -> tuple[JsonObject, Callable[[JsonObject], JsonObject]]:
    """Reads the basic hints."""
    try:
        fields = {name: _Field.read(hint, default) for name, (hint, default) in hints.items()}
    except _NotBasic as error:
        raise TypeError(f'tool "{tool}": the type {error} needs pydantic 2, which is not installed') from None
    schema: JsonObject = {"type": "object", "properties": {name: field.schema for name, field in fields.items()}}
    required = [name for name, field in fields.items() if field.is_required]
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False

    def check(arguments: JsonObject) -> JsonObject:
        arguments = _with_integers(arguments)
        for name in arguments:
            if name not in fields:
                raise Invalid(f"{name}: there is no such argument")
        for name in required:
            if name not in arguments:
                raise Invalid(f"{name}: it is missing")
        return {name: fields[name].check(value, name) for name, value in arguments.items()}

    return schema, check


def _is_context(hint: Any, context_type: type) -> bool:
    """Whether a parameter takes the context, also one that may be without it."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
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
        schema, check = _read(hint)
        if default is not inspect.Parameter.empty and _is_json(default):
            schema = {**schema, "default": default}
        return cls(schema, default is inspect.Parameter.empty, check)


def _is_json(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _read(hint: Any) -> tuple[JsonObject, Callable[[Any, str], Any]]:
    """Returns the JSON Schema of a hint, and the check of a value. Raises ``_NotBasic``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        schema, check = _read(arguments[0])
        text = _text_of(arguments[1:])
        return ({**schema, "description": text} if text else schema), check
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
        kinds = {type(it) for it in accepted}
        of_type = {"type": _NAMES[kinds.pop()]} if len(kinds) == 1 and accepted != [None] else {}
        return {**({"const": accepted[0]} if len(accepted) == 1 else {"enum": accepted}), **of_type}, is_one
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
        if isinstance(value, float):  # not an integer: those have no point any more
            raise Invalid(f"{place}: it must be a whole number")
        return value

    return check


def _union(parts: list[tuple[JsonObject, Callable[[Any, str], Any]]]) -> tuple[JsonObject, Callable[[Any, str], Any]]:
    def check(value: Any, place: str) -> Any:
        accepted: list[Any] = []
        reasons: list[str] = []
        for _, accepts in parts:
            try:
                accepted.append(accepts(value, place))
            except Invalid as error:
                reasons.append(str(error))
        if not accepted:
            raise Invalid(", or ".join(dict.fromkeys(reasons)))
        # The one that changes nothing: 1 stays an integer for `float | int`.
        return next((it for it in accepted if type(it) is type(value)), accepted[0])

    return {"anyOf": [schema for schema, _ in parts]}, check


def _list(item: tuple[JsonObject, Callable[[Any, str], Any]] | None) -> tuple[JsonObject, Callable[[Any, str], Any]]:
    def check(value: Any, place: str) -> Any:
        if not isinstance(value, list):
            raise Invalid(f"{place}: it must be a list")
        return value if item is None else [item[1](it, f"{place}[{at}]") for at, it in enumerate(value)]

    return {"type": "array", "items": {} if item is None else item[0]}, check


def _dict(item: tuple[JsonObject, Callable[[Any, str], Any]] | None) -> tuple[JsonObject, Callable[[Any, str], Any]]:
    def check(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise Invalid(f"{place}: it must be an object")
        return value if item is None else {key: item[1](it, f"{place}.{key}") for key, it in value.items()}

    return {"type": "object", "additionalProperties": (item[0] if item else {}) or True}, check


def _text_of(notes: tuple[Any, ...]) -> str:
    return " ".join(note for note in notes if isinstance(note, str))


def _has_pydantic() -> bool:
    try:
        import pydantic
    except ImportError:
        return False
    return pydantic.VERSION.startswith("2.")


def _by_pydantic(tool: str, hints: dict[str, tuple[Any, Any]]) -> tuple[JsonObject, Callable[[JsonObject], JsonObject]]:
    """Reads all hints that pydantic knows."""
    import pydantic
    from pydantic.fields import FieldInfo
    from pydantic.json_schema import GenerateJsonSchema

    class Schema(GenerateJsonSchema):
        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False  # it would only repeat the name

    # Names that a model cannot have are aliases.
    fields, names = {}, {}
    for at, (name, (hint, default)) in enumerate(hints.items()):
        is_possible = not name.startswith(("_", "model_")) and not hasattr(pydantic.BaseModel, name)
        field = name if is_possible else f"parameter_{at}"
        names[field] = name
        # Not by an alias generator, which would name the fields of dataclasses within, too.
        read = _for_pydantic(hint) if is_possible else Annotated[_for_pydantic(hint), pydantic.Field(alias=name)]
        fields[field] = (read, ... if default is inspect.Parameter.empty else default)
    basic = {}
    for name, (hint, default) in hints.items():
        with contextlib.suppress(_NotBasic):
            basic[name] = _Field.read(hint, default)
    # Strict, but of the author's own models: these say themselves how strict they are.
    config = pydantic.ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=False)
    # A default of pydantic's own is no value for the function.
    always = {name for name, (_, default) in hints.items() if isinstance(default, FieldInfo)}
    try:
        model: Any = pydantic.create_model(tool, __config__=config, **fields)  # type: ignore[call-overload]
        schema: JsonObject = model.model_json_schema(schema_generator=Schema)
    except Exception as error:
        raise TypeError(f'tool "{tool}": its type hints have no JSON Schema: {error}') from error
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        if "default" in field and not _is_json(field["default"]):
            del field["default"]

    def check(arguments: JsonObject) -> JsonObject:
        arguments = _with_integers(arguments)
        try:
            # As JSON, in which a strict date or enumeration is a text.
            checked = model.model_validate_json(json.dumps(arguments))
        except pydantic.ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            raise Invalid(_describe(problems, arguments, basic)) from None
        given = checked.model_fields_set
        return {name: getattr(checked, field) for field, name in names.items() if field in given or name in always}

    return schema, check


def _for_pydantic(hint: Any) -> Any:
    """A hint whose notes that are texts are descriptions for pydantic, also within it, and whose literal 1 is not ``True``."""
    from pydantic import BeforeValidator, Field

    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        text = _text_of(arguments[1:])
        notes = [note for note in arguments[1:] if not isinstance(note, str)]
        described = [Field(description=text)] if text else []
        return Annotated[(_for_pydantic(arguments[0]), *described, *notes)] if described or notes else arguments[0]
    if origin in (Union, types.UnionType):
        return Union[tuple(_for_pydantic(it) for it in arguments)]
    if origin is Literal:

        def check(value: Any) -> Any:
            if isinstance(value, int) and not any(value == it and type(value) is type(it) for it in arguments):
                raise ValueError(f"it must be one of {', '.join(map(repr, arguments))}")
            return value

        return Annotated[hint, BeforeValidator(check)]
    if origin in (list, dict):
        return types.GenericAlias(origin, tuple(_for_pydantic(it) for it in arguments))
    return hint


def _with_integers(value: Any) -> Any:
    """A value in which 1.0 is 1: in JSON both are the same integer."""
    if isinstance(value, dict):
        return {key: _with_integers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**64 else value


#: At most this many problems are described.
_MAX_PROBLEMS = 8


def _describe(problems: Any, arguments: JsonObject, basic: Mapping[str, _Field]) -> str:
    """Describes pydantic's problems, and those of basic hints as our own reader does."""
    texts: list[str] = []
    for problem in problems:
        name, *rest = problem["loc"] or ("",)
        place = f"{name}" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)
        text = f"{place}: {problem['msg']}" if place else str(problem["msg"])
        if problem["type"] == "extra_forbidden" and not rest:
            text = f"{name}: there is no such argument"
        elif problem["type"] == "missing" and not rest:
            text = f"{name}: it is missing"
        elif name in basic:
            try:
                basic[name].check(arguments[name], name)
            except Invalid as error:
                text = str(error)
        if text not in texts:
            texts.append(text)
    more = [f"{len(texts) - _MAX_PROBLEMS} more"] if len(texts) > _MAX_PROBLEMS else []
    return "; ".join([*texts[:_MAX_PROBLEMS], *more])
