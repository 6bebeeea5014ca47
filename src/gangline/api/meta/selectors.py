"""Label and field selectors: parsed from text or from an object, matched against labels or fields.

Text form: ``app=web,tier!=cache,env in (dev,test),!legacy,gpus>4``. An empty selector selects all.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gangline.api import names
from gangline.api.meta.objects import LabelSelector


class SelectorError(ValueError):
    """The selector cannot be parsed. The message contains the position and a remedy."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on a label or field."""

    key: str
    operator: str
    """``=``, ``!=``, ``in``, ``notin``, ``exists``, ``!``, ``>`` or ``<``."""
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet the requirement. An absent label is unequal to every value."""
        return _MATCH[self.operator](labels.get(self.key), self.values)

    def __str__(self) -> str:
        """Format as text that parses to an equal requirement."""
        if self.operator == "exists":
            return self.key
        if self.operator == "!":
            return f"!{self.key}"
        if self.operator in ("in", "notin"):
            return f"{self.key} {self.operator} ({','.join(self.values)})"
        return f"{self.key}{self.operator}{self.values[0]}"


@dataclass(frozen=True, slots=True)
class Selector:
    """All requirements must be met; without any, everything is selected."""

    requirements: tuple[Requirement, ...] = ()
    matches_nothing: bool = False
    """True selects nothing: the meaning of an absent selector in some places."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels (or fields) is selected."""
        return not self.matches_nothing and all(
            requirement.matches(labels) for requirement in self.requirements
        )

    def __str__(self) -> str:
        """Format as text that parses to an equal selector."""
        return ",".join(map(str, self.requirements))


EVERYTHING = Selector()
NOTHING = Selector(matches_nothing=True)


def _parse_number(text: str | None) -> int | None:
    """Return a 64-bit number, or None: the values of labels that ``>`` and ``<`` compare."""
    return int(text) if text and re.fullmatch(r"[+-]?[0-9]{1,19}", text, re.ASCII) else None


def _compare_numbers(
    is_right: Callable[[int, int], bool],
) -> Callable[[str | None, tuple[str, ...]], bool]:
    def compare(value: str | None, values: tuple[str, ...]) -> bool:
        left, right = _parse_number(value), _parse_number(values[0])
        return left is not None and right is not None and is_right(left, right)

    return compare


_MATCH: Mapping[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "=": lambda value, values: value == values[0],
    "!=": lambda value, values: value != values[0],
    "in": lambda value, values: value in values,
    "notin": lambda value, values: value not in values,
    "exists": lambda value, values: value is not None,
    "!": lambda value, values: value is None,
    ">": _compare_numbers(lambda left, right: left > right),
    "<": _compare_numbers(lambda left, right: left < right),
}

_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")
_PAIR = re.compile(r"([^=!<>\s]+)\s*(==|!=|=|>|<)\s*([^=!<>\s]*)")
_EXISTS = re.compile(r"(!?)\s*([^=!<>()\s,]+)")
_SEPARATOR = re.compile(r"[(),]")
_FIELD = re.compile(r"(.+?)(!=|==|=)(.*)", re.DOTALL)
_FIELD_PARTS = re.compile(r"(?:\\.|[^,\\])+", re.DOTALL)
_ORDER = (">", "<")
_FROM_OBJECT = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "!"}


def parse_label_selector(text: str) -> Selector:
    """Parse a label selector. Selectors of usual length are cached. Raises SelectorError: it cannot
    be parsed.
    """
    return (_cached_labels if len(text) <= _MAX_CACHED_CHARS else _parse_labels)(text)


def _parse_labels(text: str) -> Selector:
    if not text.strip():
        return EVERYTHING
    return Selector(tuple(_parse_requirement(part.strip()) for part in _split_requirements(text)))


def _split_requirements(text: str) -> list[str]:
    """Split at commas, except those of a list of values: the next bracket after them closes it."""
    ends: list[int] = []
    in_values = False
    for separator in reversed(list(_SEPARATOR.finditer(text))):
        if separator[0] != ",":
            in_values = separator[0] == ")"
        elif not in_values:
            ends.append(separator.start())
    starts = [0, *(end + 1 for end in reversed(ends))]
    return [text[start:end] for start, end in zip(starts, [*reversed(ends), None], strict=True)]


def selector_from_object(selector: LabelSelector | None) -> Selector:
    """Convert a selector struct. None selects nothing; an empty selector selects everything. Raises
    SelectorError: an expression has an unknown operator or the wrong number of values.
    """
    if selector is None:
        return NOTHING
    equal = [Requirement(key, "=", (value,)) for key, value in selector.match_labels.items()]
    more = []
    for expression in selector.match_expressions:
        operator = _FROM_OBJECT.get(expression.operator)
        if operator is None:
            raise SelectorError(
                f"operator {expression.operator!r} of {expression.key!r} is unknown; "
                f"use one of {', '.join(_FROM_OBJECT)}"
            )
        if (operator in ("in", "notin")) != bool(expression.values):
            needs = "at least one value" if operator in ("in", "notin") else "no values"
            raise SelectorError(f"{expression.operator} of {expression.key!r} takes {needs}")
        more.append(Requirement(expression.key, operator, tuple(expression.values)))
    return Selector((*equal, *more))


def parse_field_selector(text: str) -> Selector:
    r"""Parse a field selector such as ``status.phase!=Running,spec.nodeName=a`` (``\`` escapes).

    Selectors of usual length are cached.

    Raises:
        SelectorError: it cannot be parsed.
    """
    return (_cached_fields if len(text) <= _MAX_CACHED_CHARS else _parse_fields)(text)


def _parse_fields(text: str) -> Selector:
    return Selector(
        tuple(_parse_field_requirement(part) for part in _FIELD_PARTS.findall(text) if part.strip())
    )


def _parse_requirement(part: str) -> Requirement:
    if match := _SET.fullmatch(part):
        values = tuple(sorted({value.strip() for value in match[3].split(",")}))
        return _validated(Requirement(match[1], match[2], values), part)
    if match := _PAIR.fullmatch(part):
        operator = "=" if match[2] == "==" else match[2]
        return _validated(Requirement(match[1], operator, (match[3],)), part)
    if match := _EXISTS.fullmatch(part):
        return _validated(Requirement(match[2], "!" if match[1] else "exists"), part)
    raise SelectorError(
        f"cannot read {part!r} as a selector; write key=value, key!=value, key in (a,b), "
        "key notin (a,b), key, !key, key>1 or key<1"
    )


def _validated(requirement: Requirement, part: str) -> Requirement:
    if complaint := names.validate_label_key(requirement.key):
        raise SelectorError(f"key {requirement.key!r} in {part!r} {complaint.problem}")
    for value in requirement.values:
        if requirement.operator in _ORDER and _parse_number(value) is None:
            raise SelectorError(f"{part!r} compares with {value!r}, which is not a whole number")
        if requirement.operator not in _ORDER and (complaint := names.validate_label_value(value)):
            raise SelectorError(f"value {value!r} in {part!r} {complaint.problem}")
    return requirement


def _parse_field_requirement(part: str) -> Requirement:
    if match := _FIELD.fullmatch(part.strip()):
        value = re.sub(r"\\([\\,=])", r"\1", match[3].strip())
        return Requirement(match[1].strip(), "!=" if match[2] == "!=" else "=", (value,))
    raise SelectorError(f"cannot read {part!r} as a field selector; write field=value")


_MAX_CACHED_CHARS = 1000
"""Longer selectors are not cached: a thousand of them would take much memory."""
_cached_labels = lru_cache(maxsize=1024)(_parse_labels)
_cached_fields = lru_cache(maxsize=1024)(_parse_fields)
