"""Classes with fields, as frozen dataclasses are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda made: made


@dataclass_transform(frozen_default=True)
class Record:
    """The annotations of a subclass are its fields, and what the class has under a field's name is its default.

    Used in place of ``dataclass``, which compiles six methods for each class: that was half the time of ``import toolbridge``.
    """

    _fields: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        what, fields = type(self), self._fields
        if len(values) > len(fields):
            raise TypeError(f"{what.__name__} has {len(fields)} fields; {len(values)} values are too many")
        given = dict(zip(fields, values))
        for name, value in named.items():
            if name not in fields or name in given:
                raise TypeError(f"{what.__name__} has no field {name}, or it is given twice")
            given[name] = value
        for name in fields:
            if name not in given:
                if not hasattr(what, name):
                    raise TypeError(f"{what.__name__} needs the field {name}")
                given[name] = getattr(what, name)
        vars(self).update(given)

    def replace(self, **fields: Any) -> Self:
        """Returns a copy with other values of some fields."""
        return type(self)(**{**vars(self), **fields})

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(self) is type(other) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self._fields))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._fields)})"
