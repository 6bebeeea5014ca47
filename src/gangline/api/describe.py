"""How a field says what it is for: the words, limits and list keys that schemas are made from.

Decoding stays lenient (an unknown enum value read from a newer server must not break a watch), so
limits live in the schema that writers are checked against, not in the type that readers decode to.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec


def about(
    description: str,
    *,
    required: bool = False,
    values: Sequence[str] = (),
    keys: Sequence[str] = (),
    shape: type[msgspec.Struct] | None = None,
    brief: bool = False,
    **limits: Any,
) -> msgspec.Meta:
    """Describe a field of a struct.

    Args:
        description: what the field means, for people (``kubectl explain`` prints it).
        required: a writer must give it, though a reader does not insist.
        values: the only values allowed.
        keys: for lists of objects: the fields that identify an element when lists are merged.
        shape: the struct that a field read as a plain dict is described and checked by.
        brief: a CRD checks its inside, but describes it elsewhere.
        limits: further JSON schema words such as ``minimum``, ``default`` or ``maxLength``.
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
"""A number, or text such as a port's name or a percentage."""

Quantity = Annotated[int | float | str, msgspec.Meta(extra={"format": "quantity"})]
"""An amount as written on the wire, such as ``"500m"`` or ``"4Gi"`` (see ``quantity``)."""

ResourceList = dict[str, Quantity]
"""Amounts by resource name: cpu, memory, nvidia.com/gpu, ..."""

FreeForm = dict[str, Any]
"""An object of which we neither read nor describe the inside."""
