"""In which form a client wants its answer, and reading the forms that bodies come in."""

import json
import math
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import yaml

from gangline.api.yamltext import BadYaml, survey
from gangline.local.apiserver.errors import bad_request, not_acceptable, unsupported_media
from gangline.local.apiserver.protobuf import MEDIA, read_protobuf
from gangline.local.apiserver.registry import Json

JSON, YAML = "application/json", "application/yaml"
WRITTEN = (JSON, YAML)
READ = (JSON, YAML)

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Form(NamedTuple):
    """A form of an answer."""

    media: str = JSON
    shape: str = ""
    """``Table``, ``PartialObjectMetadata``…; empty: the object itself."""
    group: str = ""
    version: str = ""


@lru_cache(maxsize=512)
def offers(accept: str) -> tuple[Form, ...]:
    """The forms that an ``Accept`` header names and that can be written, best first."""
    found: list[tuple[float, int, Form]] = []
    for position, clause in enumerate(accept.split(",")):
        media, *options = (part.strip() for part in clause.split(";"))
        values = dict(option.split("=", 1) for option in options if "=" in option)
        if media in ("", "*/*", "application/*"):
            media = JSON
        elif media in ("text/yaml", "application/x-yaml"):
            media = YAML
        if media in WRITTEN:
            form = Form(media, values.get("as", ""), values.get("g", ""), values.get("v", ""))
            found.append((-_quality(values.get("q", "1")), position, form))
    return tuple(form for _, _, form in sorted(found))


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def choose(accept: str, shapes: tuple[str, ...] = ()) -> Form:
    """The best form for a client among the object itself and ``shapes``.

    Raises:
        StatusError: 406, nothing that the client reads can be written.
    """
    for form in offers(accept or JSON):
        if not form.shape or form.shape in shapes:
            return form
    raise not_acceptable(WRITTEN)


def read_body(body: bytes, content_type: str) -> Any:
    """Decode a JSON or YAML body.

    Raises:
        StatusError: 400 when it cannot be read, 415 when its form is not known here.
    """
    media = content_type.split(";", maxsplit=1)[0].strip().lower()
    if media in ("", "*/*") or media.endswith("json"):
        return read_json(body)
    if media.endswith("yaml"):
        return read_yaml(body)
    if media == MEDIA:
        return read_protobuf(body, READ)
    raise unsupported_media(content_type, READ)


def read_json(body: bytes) -> Any:
    """Decode JSON; bad JSON is the client's mistake (400)."""
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"the body of the request is not valid JSON: {error}") from None


def read_yaml(body: bytes) -> Any:
    """Decode YAML as JSON would be; dates stay text."""
    try:
        survey(body)  # a few lines may stand for more than memory holds
        loaded = yaml.load(body, Loader=_JsonLikeLoader)
    except (BadYaml, yaml.YAMLError, RecursionError, ValueError) as error:
        raise bad_request(f"the body of the request is not valid YAML: {error}") from None
    return _as_json(loaded)


def _as_json(value: Any) -> Any:
    """YAML's values as JSON has them: keys are text, and nothing is there that JSON cannot say."""
    if isinstance(value, dict):
        return {_key(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise bad_request(f"the YAML in the body holds a value that JSON cannot hold: {value!r}")


def _key(key: object) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, (str, int, float)):
        return str(key)
    raise bad_request(f"the YAML in the body has a key that is no text: {key!r}")


class _JsonLikeLoader(yaml.CSafeLoader):
    """Reads what JSON can say: a date-like word is text, as in Kubernetes."""


_JsonLikeLoader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def mapping(value: object, what: str) -> Json:
    """An object within a body; nothing counts as an empty one.

    Raises:
        StatusError: 400, it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{what} must be an object, not {type(value).__name__}")
    return value


def text(value: object, what: str) -> str:
    """A text within a body; nothing counts as an empty one.

    Raises:
        StatusError: 400, it is something else.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise bad_request(f"{what} must be a string, not {type(value).__name__}")
    return value


def texts(value: object, what: str) -> list[str]:
    """A list of texts within a body; nothing counts as an empty one.

    Raises:
        StatusError: 400, it is something else.
    """
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise bad_request(f"{what} must be a list of strings")
    return value


def duplicate_fields(body: bytes) -> list[str]:
    """The names of fields that a JSON body gives more than once in one object."""
    found: list[str] = []

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                found.append(name)
            seen.add(name)

    try:
        json.loads(body, object_pairs_hook=check)
    except (ValueError, RecursionError):
        return []
    return found


def write_yaml(obj: Any) -> bytes:
    """Encode an answer as YAML."""
    return yaml.dump(obj, Dumper=yaml.CSafeDumper, sort_keys=False).encode()
