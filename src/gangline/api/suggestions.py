"""The name that was probably meant. Importers do it late: it takes ten milliseconds."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a question about the nearest name, with a space before; empty without one."""
    near = get_close_matches(name, list(names), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
