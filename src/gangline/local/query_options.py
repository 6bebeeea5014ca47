"""Boolean options in the query of a request, by the rule of Kubernetes' servers.

The rule is ``Convert_Slice_string_To_bool`` of ``k8s.io/apimachinery/pkg/runtime``: ``0``, and
``false`` in any case, are false. Every other value is true, also ``yes`` and the empty one. Of a
repeated option the first value counts.
"""

from collections.abc import Mapping


def parse_boolean(text: str) -> bool:
    """Return the value of a boolean option that is present."""
    return text != "0" and text.casefold() != "false"


def boolean_option(query: Mapping[str, str], name: str) -> bool | None:
    """Return the value of a boolean option, or None if it is absent, which mostly means false.

    ``query`` has the first value of each option.
    """
    text = query.get(name)
    return None if text is None else parse_boolean(text)
