"""Deprecated names of the public API: each one still works, and its warning names the successor."""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module-level ``__getattr__`` that resolves old names.

    Args:
        module: name of the module that defines the new names.
        names: new name by old name.
    """

    def resolve(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = names[name]
        warnings.warn(f"{module}.{name} is now {new}", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], new)

    return resolve
