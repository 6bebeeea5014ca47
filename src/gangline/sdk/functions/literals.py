"""Values as Python source that has exactly this value again, in any Python of a pod.

JSON would change them: tuples become lists, keys become texts, bytes and infinity have no form. A
subclass, such as ``numpy.float64`` or an enumeration, has no literal of its own and is refused:
the pod might have another version of its package, or none.
"""

import math
from collections.abc import Iterable

MAX_DEPTH = 50
"""Limit of nesting: Python's parser accepts 200 open brackets. Values that contain themselves end
here too."""
_DECIMAL_BITS = 4096
"""Larger integers are written in base 16, because Python limits the digits of base 10."""
_BRACKETS: dict[type, str] = {
    list: "[{}]",
    tuple: "({})",
    set: "{{{}}}",
    frozenset: "frozenset({{{}}})",
}
_SCALARS = (type(None), bool, str, bytes, bytearray, range)


class NoLiteral(ValueError):
    """A value has no literal; the message has its place and what to pass instead."""


def write_literal(value: object, place: str) -> str:
    """Return an expression that has the value.

    Args:
        value: the value.
        place: its name in messages, such as ``config``; parts of it are ``config['rate'][0]``.

    Raises:
        NoLiteral: the value or a part of it is not plain data.
    """
    return _write(value, place, 0)


def _write(value: object, place: str, depth: int) -> str:
    if depth > MAX_DEPTH:
        raise NoLiteral(f"{place[:80]}... has more than {MAX_DEPTH} levels, or contains itself")
    kind = type(value)
    if kind in _SCALARS:
        return repr(value)
    if isinstance(value, int) and kind is int:
        return repr(value) if value.bit_length() < _DECIMAL_BITS else hex(value)
    if isinstance(value, float) and kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, complex) and kind is complex:
        parts = (_write(part, place, depth) for part in (value.real, value.imag))
        return f"complex({', '.join(parts)})"
    if isinstance(value, dict) and kind is dict:
        return _write_dict(value, place, depth)
    if kind in _BRACKETS and isinstance(value, list | tuple | set | frozenset):
        return _write_items(value, kind, place, depth)
    raise NoLiteral(f"{place} is {_describe(value)}")


def _write_dict(value: dict[object, object], place: str, depth: int) -> str:
    items = (
        f"{_write(key, f'the key {key!r:.60} of {place}', depth + 1)}: "
        f"{_write(item, f'{place}[{key!r:.60}]', depth + 1)}"
        for key, item in value.items()
    )
    return f"{{{', '.join(items)}}}"


def _write_items(value: Iterable[object], kind: type, place: str, depth: int) -> str:
    is_ordered = kind in (list, tuple)
    items = [
        _write(item, f"{place}[{index}]" if is_ordered else f"an element of {place}", depth + 1)
        for index, item in enumerate(value)
    ]
    if not items and not is_ordered:
        return f"{kind.__name__}()"
    comma = "," if kind is tuple and len(items) == 1 else ""
    return _BRACKETS[kind].format(", ".join(items) + comma)


def _describe(value: object) -> str:
    kind = type(value)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    described = f"of the type {module}{kind.__qualname__}, which cannot be sent unchanged"
    if hasattr(value, "tolist"):  # arrays and their scalars
        return f"{described}: pass .tolist() of it"
    for base in (str, int, float, dict, list, tuple, set):
        if isinstance(value, base):
            return f"{described}: pass {base.__name__}() of it"
    if callable(value):
        return f"{described}: call it in the function by its name"
    return f"{described}: pass numbers, texts, bytes, lists, tuples, sets and dicts"
