"""The imports with which a script begins, read from its source.

What comes before them cannot affect them: only a docstring and other imports of installed libraries
may. So the fork server may do these imports before the script begins.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_TORCH = "torch"
_FIRST_PACKAGES = frozenset({_TORCH, "numpy", "torchvision"})
"""Packages that are imported for the first workers; others may depend on the process."""
_HARMLESS_MODULES = sys.stdlib_module_names | {"numpy"}
"""Modules that set nothing on which an import of PyTorch depends."""
_TRAINING_NAMES = frozenset(
    {"optim", "DistributedDataParallel", "DDP", "FullyShardedDataParallel", "fully_shard"}
)
_TRAINING_MODULE = "torch._dynamo"
"""Module that PyTorch imports when the first optimizer is made."""


def first_imports(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the modules that the first workers of a command line certainly import.

    Empty unless PyTorch is among them: other imports are short. A module (``-m``) is not searched:
    that might import its parent packages.

    Args:
        arguments: a command line of an interpreter, an option, and a script.
    """
    script = Path(arguments[2]) if len(arguments) > 2 and arguments[2] != "-m" else None
    if script is None or script.name.startswith("-"):
        return ()
    try:
        source = script.read_bytes()
    except OSError:
        return ()
    return leading_imports(source, script.parent)


def leading_imports(source: bytes, folder: Path) -> tuple[str, ...]:
    """Return the leading imports of PyTorch and its companions; empty without PyTorch.

    Args:
        source: the script.
        folder: the script's folder, whose modules end the list.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    found: list[str] = []
    for name in _leading_modules(tree):
        package = name.partition(".")[0]
        if (folder / f"{package}.py").exists() or (folder / package).is_dir():
            break
        if package in _FIRST_PACKAGES:
            found.append(name)
        elif package not in _HARMLESS_MODULES:
            break
    if not any(name.partition(".")[0] == _TORCH for name in found):
        return ()
    if any(_is_training_name(node) for node in ast.walk(tree)):
        found.append(_TRAINING_MODULE)
    return tuple(dict.fromkeys(found))


def imports_torch_first(source: bytes) -> bool:
    """Return whether nothing that affects PyTorch comes before its import in a script."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    for name in _leading_modules(tree):
        package = name.partition(".")[0]
        if package == _TORCH:
            return True
        if package not in _HARMLESS_MODULES:
            return False
    return False


def _leading_modules(tree: ast.Module) -> Iterator[str]:
    body = tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module
            case _:
                return


def _is_training_name(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            return name.rpartition(".")[2] in _TRAINING_NAMES
    return False
