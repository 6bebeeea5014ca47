"""Field annotations from which schemas are made: descriptions, limits and list keys.

Decoding stays lenient: an unknown enum value from a newer server must not break a watch. Limits are
therefore part of the schema that writers are checked against, not of the type that readers decode.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec


def doc(
    description: str,
    *,
    required: bool = False,
    values: Sequence[str] = (),
    keys: Sequence[str] = (),
    shape: type[msgspec.Struct] | None = None,
    brief: bool = False,
    **limits: Any,
) -> msgspec.Meta:
    """Annotate a field of a struct.

    Args:
        description: what the field means (``kubectl explain`` prints it).
        required: a writer must give the field; a reader does not insist on it.
        values: the allowed values.
        keys: for lists of objects: the fields that identify an element when lists are merged.
        shape: the struct by which a field that is read as a plain dict is described and checked.
        brief: a CRD checks the fields below this one without describing them again.
        limits: further JSON schema keywords such as ``minimum``, ``default`` or ``maxLength``.
    """
    words = dict(limits)
    if values:
        words["enum"] = list(values)
    return msgspec.Meta(
        description=description,
        extra_json_schema=words or None,
        extra={"required": required, "keys": list(keys), "shape": shape, "brief": brief},
    )


IntOrString = Annotated[int | str, msgspec.Meta(extra={"format": "int-or-string"})]
"""A number, or text such as the name of a port or a percentage."""

Quantity = Annotated[int | float | str, msgspec.Meta(extra={"format": "quantity"})]
"""A quantity in wire form, such as ``"500m"`` or ``"4Gi"`` (see ``quantity``)."""

QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
"""That of Kubernetes' own generator of definitions."""

CheckedResourceList = dict[
    str,
    Annotated[
        int | float | str, msgspec.Meta(extra={"format": "quantity", "pattern": QUANTITY_PATTERN})
    ],
]
"""Quantities by resource name that the API server itself checks, where no webhook does."""

ResourceList = dict[str, Quantity]
"""Quantities by resource name: cpu, memory, nvidia.com/gpu, ..."""

FreeForm = dict[str, Any]
"""An object whose fields are neither read nor described here."""
