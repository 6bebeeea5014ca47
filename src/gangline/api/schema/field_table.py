"""The table of Kubernetes' built-in kinds: messages with numbered fields.

``protobuf_fields.json`` has the messages of each API version; other versions refer to one as
``VERSION#NAME``. ``tools/kubernetes_protobuf_fields.py`` writes it from Kubernetes' Go types. An
entry such as ``"1": "drivers?! []CSINodeDriver map=name patch=merge key=name"`` means:

* the JSON name; without one, the fields of the message are inlined into their parent;
* ``?``: zero is a value. Without it, zero means absent, because Go writes zeros for absent fields;
* ``!``: required in OpenAPI documents;
* ``[]`` or ``{}`` for a list or a map, then a message, or ``s`` text, ``b`` boolean, ``n`` int32,
  ``i`` int64, ``d`` double, ``y`` bytes;
* ``atomic``, ``set`` or ``map=KEYS``: the owner of elements under server-side apply;
* ``patch=STRATEGY`` and ``key=KEY``: how strategic merge patches merge the field.

The number 0 has no field: its entry ``atomic`` is about the message.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

_META = "meta.k8s.io/v1"
_ATOMIC = "0"


class MessageField(NamedTuple):
    name: str
    keeps_zero: bool
    required: bool
    container: str
    """``[]``, ``{}`` or empty."""
    type: str
    """A letter, a message with a JSON form of its own (``Time``), or ``VERSION#NAME``."""
    flags: Mapping[str, str]


def find_message(api_version: str, kind: str) -> str | None:
    """Return the ``VERSION#NAME`` of a kind, or None if the table does not contain it."""
    if kind in _table().get(api_version, ()):
        return f"{api_version}#{kind}"
    # DeleteOptions are registered in every group and version.
    return f"{_META}#{kind}" if kind == "DeleteOptions" else None


@cache
def message_fields(message: str) -> Mapping[int, MessageField]:
    api_version, _, name = message.rpartition("#")
    entries = _table()[api_version][name]
    return {
        int(number): _field(text, api_version)
        for number, text in entries.items()
        if number != _ATOMIC
    }


def message_is_atomic(message: str) -> bool:
    """Return True if one manager owns the complete message under server-side apply."""
    api_version, _, name = message.rpartition("#")
    return _ATOMIC in _table()[api_version][name]


@cache
def _table() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    package = resources.files("gangline.api.schema")
    table: dict[str, dict[str, dict[str, str]]] = json.loads(
        package.joinpath("protobuf_fields.json").read_text()
    )
    return table


def _field(text: str, api_version: str) -> MessageField:
    name, type_, *flags = text.split(" ")
    many = type_[:2] if type_[:2] in ("[]", "{}") else ""
    type_ = type_.removeprefix(many)
    if type_ in _table()[api_version]:
        type_ = f"{api_version}#{type_}"
    parts = (flag.partition("=") for flag in flags)
    return MessageField(
        name.rstrip("?!"),
        "?" in name,
        "!" in name,
        many,
        type_,
        {flag: value for flag, _, value in parts},
    )
