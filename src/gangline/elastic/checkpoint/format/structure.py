"""The names of a state's values: as PyTorch flattens nested dictionaries and lists, and no loss.

PyTorch drops empty dictionaries and turns all keys into text. Here an empty dictionary is a value,
and so is a dictionary with other keys than text, if it contains no tensor. Where one contains
tensors, its path is recorded, so that its numbers can be restored. Below ``fixed`` paths, those of
models and optimizers, the names are exactly PyTorch's.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Set
from typing import Any

import torch

Path = tuple[str | int, ...]
STRUCTURED = "@structure"
"""Marks the paths of a checkpoint that was flattened here."""
_KEYS = "@keys"
_LOADABLE = (dict, OrderedDict, Counter)
"""Dictionaries that the restricted unpickler can create."""


def flatten_state(
    state: Mapping[Any, Any], fixed: Collection[tuple[str, ...]] = ()
) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the values by name, and the path of each name.

    Raises ValueError: two values have the same name.
    """
    flat: dict[str, Any] = {}
    paths: dict[str, Path] = {}

    def add(path: Path, value: object) -> None:
        name = ".".join(map(str, path))
        if name in flat:
            raise ValueError(f"two values of the state have the name {name!r}")
        flat[name], paths[name] = value, path

    def visit(path: Path, value: object) -> None:
        if isinstance(value, Mapping):
            is_free = bool(path) and not is_below(path, fixed)
            is_text = all(isinstance(key, str) for key in value)
            if is_free and (not value or not (is_text or _has_tensor(value))):
                add(path, _loadable(value))
                return
            if is_free and not is_text:
                paths[".".join(map(str, path)) + _KEYS] = path
            for key, below in value.items():
                visit((*path, str(key)), below)
        elif isinstance(value, list) and not _is_one_value(value):
            for number, below in enumerate(value):
                visit((*path, number), below)
        else:
            add(path, value)

    visit((), state)
    return flat, paths


def is_below(path: Path, prefixes: Collection[tuple[str, ...]]) -> bool:
    """Return whether a path begins with one of the prefixes."""
    return any(path[: len(prefix)] == prefix for prefix in prefixes)


def existing_key(state: Any, key: str | int) -> str | int:
    """Return the key as a dictionary has it: PyTorch saves numbers as text."""
    if isinstance(state, dict) and key not in state and isinstance(key, str) and is_number(key):
        return int(key) if int(key) in state else key
    return key


def get_nested(state: Any, path: Path) -> Any:
    """Return what is at a path; None if nothing is."""
    for name in path:
        key = existing_key(state, name)
        if isinstance(state, list):
            state = state[key] if isinstance(key, int) and key < len(state) else None
        else:
            state = state.get(key) if isinstance(state, Mapping) else None
    return state


def restore_keys(state: Any, paths: Mapping[str, Path]) -> None:
    """Turn keys that were numbers, and have been saved as text, into numbers again."""
    for name, path in paths.items():
        if name.endswith(_KEYS) and isinstance(entries := get_nested(state, path), dict):
            items = list(entries.items())
            entries.clear()
            for key, value in items:
                entries[int(key) if isinstance(key, str) and is_number(key) else key] = value


def restore_order(state: Any, names: Set[str], paths: Mapping[str, Path]) -> None:
    """Put dictionaries that contain one of ``names`` into the order in which they were saved."""
    changed = {
        path[:end]
        for path in map(paths.__getitem__, names & paths.keys())
        for end in range(1, len(path))
    }
    keys: dict[Path, dict[str | int, None]] = {path: {} for path in changed}
    for path in paths.values():
        for end in range(1, len(path)):
            if path[:end] in keys:
                keys[path[:end]][path[end]] = None
    for path, order in keys.items():
        if isinstance(entries := get_nested(state, path), dict):
            for name in order:
                if (key := existing_key(entries, name)) in entries:
                    entries[key] = entries.pop(key)


def is_number(key: str) -> bool:
    """Return whether a key may have been an integer."""
    return key.removeprefix("-").isdigit()


def _is_one_value(value: object) -> bool:
    """As PyTorch: lists are split if they contain a tensor or a dictionary."""
    if isinstance(value, list):
        return all(_is_one_value(one) for one in value)
    return not isinstance(value, Mapping | torch.Tensor)


def _has_tensor(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensor, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_tensor, value))
    return isinstance(value, torch.Tensor)


def _loadable(value: object) -> object:
    """Replace dictionaries of other classes by plain ones."""
    if isinstance(value, Mapping):
        kind: Any = type(value) if type(value) in _LOADABLE else dict
        return kind({key: _loadable(one) for key, one in value.items()})
    if type(value) in {list, tuple}:
        return type(value)(map(_loadable, value))  # type: ignore[call-arg,call-overload]
    return value
