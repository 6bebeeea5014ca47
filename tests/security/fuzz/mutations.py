"""New inputs from known ones: changes of bytes, of JSON values, and repetitions."""

import json
import random
from typing import Any

MAX_INPUT_BYTES = 200_000
JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1 << 31, 1 << 63, 1 << 64, 10**30, 0.5, -0.0, 1e300, "", "a", "0",
    "-1", "x" * 300, "1e9", "9" * 40, "\x00", "é", "\u2028", "$patch", "$retainKeys", ".", "/",
    "~1", [], {}, [None], [{}], [[]], {"": None}, {"a": {"a": {}}},
)  # fmt: skip


def mutate_bytes(rng: random.Random, seed: bytes, other: bytes, tokens: list[bytes]) -> bytes:
    """Return a changed input: some bytes, a token, a part of another input, or a repetition."""
    changed = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        place = rng.randrange(len(changed) + 1)
        end = min(len(changed), place + rng.choice((1, 1, 2, 4, 16, 64)))
        match rng.randrange(6):
            case 0:
                changed[place:end] = rng.randbytes(end - place)
            case 1:
                del changed[place:end]
            case 2:
                changed[place:place] = rng.choice(tokens) if tokens else b"\xff"
            case 3:
                changed[place:place] = changed[place:end] * rng.choice((1, 2, 100, 5000))
            case 4:
                start = rng.randrange(len(other) + 1)
                changed[place:end] = other[start : start + rng.choice((1, 8, 64))]
            case 5 if changed and place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
        del changed[MAX_INPUT_BYTES:]
    return bytes(changed)


def mutate_json(rng: random.Random, seed: bytes, other: bytes, tokens: list[bytes]) -> bytes:
    """Return a changed JSON document: values replaced, moved, wrapped, repeated or removed."""
    try:
        value, donor = json.loads(seed), json.loads(other)
    except (ValueError, RecursionError):
        return mutate_bytes(rng, seed, other, tokens)
    names = [token.decode(errors="replace") for token in tokens] or ["a"]
    for _ in range(rng.choice((1, 1, 2, 4))):
        parents = [part for part in _parts(value) if isinstance(part, dict | list) and part]
        if not parents:
            value = rng.choice(JUNK)
            break
        parent: Any = rng.choice(parents)
        key = rng.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        match rng.randrange(7):
            case 0 | 1:
                parent[key] = _copy(rng.choice(JUNK))
            case 2:
                parent[key] = _copy(rng.choice(list(_parts(donor))))
            case 3:
                parent[key] = _copy(rng.choice(list(_parts(value))))
            case 4 if isinstance(parent, dict):
                parent[rng.choice(names)] = _copy(rng.choice([*JUNK, parent[key]]))
            case 4 if isinstance(parent, list):
                # Repetitions of repetitions would fill the memory before the size is looked at, and
                # so would one object in many places.
                most = MAX_INPUT_BYTES // (len(json.dumps(parent[key])) + 1)
                count = min(most, rng.choice((1, 3, 2000)))
                parent.extend([_copy(parent[key]) for _ in range(count)])
            case 5:
                for _ in range(rng.choice((1, 3, 120))):
                    parent[key] = rng.choice(({"a": parent[key]}, [parent[key]]))
            case 6:
                del parent[key]
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):
        return seed
    return text.encode(errors="replace") if len(text) <= MAX_INPUT_BYTES else seed


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value)) if isinstance(value, dict | list) else value


def _parts(value: Any) -> list[Any]:
    found, waiting = [], [value]
    while waiting and len(found) < 10_000:
        part = waiting.pop()
        found.append(part)
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return found
