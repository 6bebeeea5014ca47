"""Content negotiation: the format of the response, and decoding of request bodies.

Bodies are JSON, YAML or protobuf, which kubectl 1.32 and newer send. Responses are JSON or YAML:
all clients that send protobuf also accept JSON.
"""

import json
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec
import yaml

from gangline.api.yaml_text import InvalidYamlError, check_yaml_size
from gangline.api.yaml_values import YamlValueLoader
from gangline.local import limits
from gangline.local.apiserver.core.errors import (
    StatusError,
    bad_request,
    not_acceptable,
    status_error,
    unsupported_media,
)
from gangline.local.apiserver.core.registry import Json
from gangline.local.apiserver.machinery.encoding import (
    JSON_ERRORS,
    MEDIA,
    ProtobufError,
    UnknownProtobufKind,
    decode_json,
    decode_protobuf,
    find_excess,
)

__all__ = ["MEDIA", "read_protobuf"]

T = TypeVar("T")


def read_protobuf(body: bytes, accepted: tuple[str, ...]) -> Json:
    """Decode a protobuf body. Raises StatusError: 415 for unknown kinds, 400 for bytes that are not
    a message.
    """
    try:
        value = decode_protobuf(body)
        check_document(value)  # it may contain JSON
        return value
    except UnknownProtobufKind:
        raise unsupported_media(MEDIA, accepted) from None
    except ProtobufError as error:
        raise bad_request(f"the body of the request is not valid protobuf: {error}") from None


JSON, YAML = "application/json", "application/yaml"
JSON_PATCH = "application/json-patch+json"
WRITABLE_TYPES = (JSON, YAML)
READABLE_TYPES = (JSON, YAML)

MAX_CACHED_CHARS = 1000
"""Longer ``Accept`` headers are not cached: hundreds of them would take much memory."""

encode_json = msgspec.json.Encoder().encode


class ResponseFormat(NamedTuple):
    """The format of a response."""

    media: str = JSON
    as_kind: str = ""
    """``Table``, ``PartialObjectMetadata`` or similar; empty for the object itself."""
    group: str = ""
    version: str = ""


def parse_accept(accept: str) -> tuple[ResponseFormat, ...]:
    """Return the formats of an ``Accept`` header that the server can write, best first."""
    parse = _parse_accept if len(accept) <= MAX_CACHED_CHARS else _parse_accept.__wrapped__
    return parse(accept)


@lru_cache(maxsize=512)
def _parse_accept(accept: str) -> tuple[ResponseFormat, ...]:
    forms: list[tuple[float, int, ResponseFormat]] = []
    most = limits.MAX_ACCEPTED_TYPES
    for position, clause in enumerate(accept.split(",", most)[:most]):
        media, *options = (part.strip() for part in clause.split(";"))
        values = dict(option.split("=", 1) for option in options if "=" in option)
        if media in ("", "*/*", "application/*"):
            media = JSON
        elif media in ("text/yaml", "application/x-yaml"):
            media = YAML
        if media in WRITABLE_TYPES:
            form = ResponseFormat(
                media, values.get("as", ""), values.get("g", ""), values.get("v", "")
            )
            forms.append((-_quality(values.get("q", "1")), position, form))
    return tuple(form for _, _, form in sorted(forms))


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def choose_format(accept: str, kinds: tuple[str, ...] = ()) -> ResponseFormat:
    """Return the client's preferred format among the object itself and ``kinds``. Raises
    StatusError: 406, the client accepts no format that the server can write.
    """
    for form in parse_accept(accept or JSON):
        if not form.as_kind or form.as_kind in kinds:
            return form
    raise not_acceptable(WRITABLE_TYPES)


def read_body(body: bytes, content_type: str) -> Any:
    """Decode a JSON, YAML or protobuf body. Raises StatusError: 400 for an invalid body, 415 for an
    unsupported media type.
    """
    if is_json(content_type):
        return read_json_document(body)
    media = content_type.split(";", maxsplit=1)[0].strip().lower()
    if media.endswith("yaml"):
        return read_yaml(body)
    if media == MEDIA:
        return read_protobuf(body, READABLE_TYPES)
    raise unsupported_media(content_type, READABLE_TYPES)


def is_json(content_type: str) -> bool:
    """Return True if ``read_body`` reads this media type as JSON."""
    media = content_type.split(";", maxsplit=1)[0].strip().lower()
    return media in ("", "*/*") or media.endswith("json")


def body_to_json(body: bytes, content_type: str) -> bytes:
    """Return a body of any readable media type as JSON. Raises StatusError: as ``read_body``; also
    400 for numbers that JSON cannot express.
    """
    try:
        return encode_json(read_body(body, content_type))
    except (OverflowError, RecursionError, UnicodeEncodeError) as error:
        raise bad_request(f"the body of the request cannot be read: {error}") from None


def read_json_document(body: bytes) -> Any:
    """Decode JSON of a client within the limits of a document. Raises StatusError: 400 for invalid
    JSON, 413 for too many values.
    """
    # Before any memory is allocated for the values.
    excess = find_excess(body, limits.MAX_VALUES, limits.MAX_DEPTH)
    if excess:
        raise _too_deep() if excess == "depth" else _too_many_values()
    value = read_json(body)
    if not is_small_document(body):
        check_document(value)
    return value


def read_json(body: bytes) -> Any:
    """Decode JSON of any size, such as a stored object. Invalid JSON raises a StatusError (400)."""
    try:
        return decode_json(body)
    except JSON_ERRORS as error:
        raise bad_request(f"the body of the request is not valid JSON: {error}") from None


def is_small_document(body: bytes) -> bool:
    """Return True if JSON is certainly within the limits of a document.

    Nearly all documents are, and this takes a fifth of the time of ``check_document``. False means
    nothing: brackets and long numbers in texts count too.
    """
    if len(body) > MIN_VALUE_BYTES * limits.MAX_VALUES or LONG_NUMBER in body.translate(_DIGITS):
        return False
    brackets = body.translate(None, _NO_BRACKETS)
    for _ in range(limits.MAX_DEPTH // 2):  # each iteration removes up to two levels
        inner_removed = brackets.replace(b"{}", b"").replace(b"[]", b"")
        if not inner_removed:
            return True
        if len(inner_removed) == len(brackets):
            return False
        brackets = inner_removed
    return False


MIN_VALUE_BYTES = 2
"""The shortest value in a list is a digit with a comma."""
LONG_NUMBER = b"0" * 19
"""Nineteen digits, of any value: the length of the smallest number outside 64 bits."""
_DIGITS = bytes(ord("0") if chr(byte).isdecimal() else ord(" ") for byte in range(128)) + b" " * 128
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def check_document(value: Any) -> None:
    """Refuse a document that is nested too deeply, has too many values, or too large numbers.

    The walk goes level by level, because recursion would end at deep nesting. Raises StatusError:
    400, or 413 for too many values.
    """
    count, level = 1, [value]
    for _ in range(limits.MAX_DEPTH + 1):
        below: list[Any] = []
        for part in level:
            kind = type(part)
            if kind is dict:
                count += len(part)
                below += [item for item in part.values() if type(item) is not str]
            elif kind is list:
                count += len(part)
                below += [item for item in part if type(item) is not str]
            elif kind is int and not limits.MIN_INTEGER <= part <= limits.MAX_INTEGER:
                raise bad_request("the body of the request has an integer of more than 64 bits")
        if count > limits.MAX_VALUES:
            raise _too_many_values()
        if not below:
            return
        level = below
    raise _too_deep()


def _too_many_values() -> StatusError:
    message = f"the body of the request has more than {limits.MAX_VALUES} values"
    return status_error(413, "RequestEntityTooLarge", message)


def _too_deep() -> StatusError:
    depth = limits.MAX_DEPTH
    return bad_request(f"the body of the request is nested more than {depth} levels deep")


def read_yaml(body: bytes) -> Any:
    """Decode YAML with the values of JSON. Invalid YAML raises a StatusError (400)."""
    try:
        # Aliases may expand beyond the available memory.
        check_yaml_size(body, limits.MAX_YAML_VALUES, max_documents=1)
        loaded = yaml.load(body, Loader=YamlValueLoader)
    except (InvalidYamlError, yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise bad_request(f"the body of the request is not valid YAML: {error}") from None
    return _as_json(loaded)


def _as_json(value: Any) -> Any:
    """Convert YAML values to JSON: keys become text, values that JSON lacks are refused."""
    if isinstance(value, dict):
        return {_key(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise bad_request(f"the YAML in the body has a value that JSON does not support: {value!r}")


def _key(key: object) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, (str, int, float)):
        return str(key)
    raise bad_request(f"the YAML in the body has a key that is not a string: {key!r}")


def expect_object(value: object, what: str) -> Json:
    """Return an object within a body; None counts as an empty one. Raises StatusError: 400, the
    value has another type.
    """
    return _expect(value, dict, {}, f"{what} must be an object")


def expect_string(value: object, what: str) -> str:
    """Return a string within a body; None counts as an empty one. Raises StatusError: 400, the
    value has another type.
    """
    return _expect(value, str, "", f"{what} must be a string")


def expect_strings(value: object, what: str) -> list[str]:
    """Return a list of strings within a body; None counts as an empty one. Raises StatusError: 400,
    the value has another type.
    """
    listed: list[str] = _expect(value, list, [], f"{what} must be a list of strings")
    return [expect_string(item, f"each of {what}") for item in listed]


def _expect(value: object, type_: type[T], empty: T, problem: str) -> T:
    if value is None:
        return empty
    if not isinstance(value, type_):
        raise bad_request(f"{problem}, not {type(value).__name__}")
    return value


def find_duplicate_fields(body: bytes, content_type: str) -> list[str]:
    """Return what a client is told of fields that occur twice in one object of a valid body."""
    media = content_type.split(";", maxsplit=1)[0].strip().lower()
    if media.endswith("json"):
        return [f'duplicate field "{path}"' for path in _duplicates_in_json(body)]
    if not media.endswith("yaml"):
        return []
    root = yaml.compose(body, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [
        f'yaml: line {line}: key "{name}" already set in map'
        for line, name in _duplicates_in_yaml(root)
    ]


class _Duplicates(list[str]):
    """The paths of duplicate fields within an object, relative to it."""


def _duplicates_in_json(body: bytes) -> list[str]:
    def check(pairs: list[tuple[str, Any]]) -> _Duplicates:
        seen: set[str] = set()
        paths: dict[str, None] = {}
        for name, value in pairs:
            if name in seen:
                paths[name] = None
            seen.add(name)
            paths |= dict.fromkeys(f"{name}{path}" for path in below(value))
        return _Duplicates(paths)

    def below(value: Any) -> Iterator[str]:
        if isinstance(value, _Duplicates):
            yield from (f".{path}" for path in value)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from (f"[{index}]{path}" for path in below(item))

    try:
        # The hooks are functions of Python: between their calls, other threads run.
        root = json.loads(body, object_pairs_hook=check, parse_int=_no_value, parse_float=_no_value)
        return [path.removeprefix(".") for path in below(root)]
    except (ValueError, RecursionError):
        return []


def _duplicates_in_yaml(root: yaml.Node | None) -> Iterator[tuple[int, str]]:
    pending, visited = [root], set()
    while pending:
        node = pending.pop()
        if not isinstance(node, yaml.CollectionNode) or id(node) in visited:
            continue
        visited.add(id(node))  # an alias is a node that was visited
        if isinstance(node, yaml.SequenceNode):
            pending += reversed(node.value)
            continue
        keys: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
                if key.value in keys:
                    yield key.start_mark.line + 1, key.value
                keys.add(key.value)
            pending.append(value)


def _no_value(_: str) -> None:
    return None


def write_yaml(obj: Any) -> bytes:
    return yaml.dump(obj, Dumper=yaml.CSafeDumper, sort_keys=False).encode()
