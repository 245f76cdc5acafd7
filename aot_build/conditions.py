"""``when = { axis = value, other = [any, of] }``: the one way in which specs choose cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

AxisValue = bool | int | str
INT32_LIMIT = 2**31


def parse_value(value: Any) -> AxisValue:
    """An axis value or constant: a boolean, a 32-bit integer or a string."""
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, int) and -INT32_LIMIT <= value < INT32_LIMIT:
        return value
    raise PydanticCustomError("value", "not a boolean, 32-bit integer or string")


def parse_when(data: Any) -> dict[str, tuple[AxisValue, ...]]:
    """A condition; a single value means the same as a list of one."""
    if not isinstance(data, dict):
        raise PydanticCustomError("when", "not a table of axis = value or axis = [values]")
    condition = {}
    for axis, wanted in data.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        if not values:
            raise PydanticCustomError("when", "an empty list matches nothing", {"key": axis})
        condition[axis] = tuple(parse_value(value) for value in values)
    return condition


Value = Annotated[AxisValue, PlainValidator(parse_value)]
When = Annotated[dict[str, tuple[AxisValue, ...]], PlainValidator(parse_when)]


def same(left: object, right: object) -> bool:
    """Equal in value and type: ``true`` is not 1."""
    return type(left) is type(right) and left == right


def is_one_of(value: object, values: tuple[AxisValue, ...] | list[AxisValue]) -> bool:
    """Whether the value is in the list, by ``same``."""
    return any(same(value, candidate) for candidate in values)


def matches(when: Mapping[str, tuple[AxisValue, ...]], axes: Mapping[str, AxisValue]) -> bool:
    """Whether a cell satisfies every part of the condition."""
    return all(is_one_of(axes[axis], wanted) for axis, wanted in when.items())
