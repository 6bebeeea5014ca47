"""The source of a function with everything of its module that it uses.

A pod has the packages of its image, but not the modules of the caller. The program that it runs
therefore contains the function, the functions, classes and constants that it uses, and the imports
of the packages. Each definition is a segment of ``program``, with the file and the line where the
caller has it. A global that cannot be written as source is an error that names it.
"""

import __future__

import ast
import builtins
import dis
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from gangline.sdk.functions.literals import NoLiteral, write_literal
from gangline.sdk.functions.program import segment

MODULE_ATTRIBUTES = frozenset(
    ("__name__", "__file__", "__doc__", "__qualname__", "__module__", "__annotations__")
)
"""Names that a program has by itself, with its own values."""


class UnsupportedFunction(ValueError):
    """The function cannot be sent as source; the message has the reason."""


def complete_source(function: Callable[..., object]) -> str:
    """Return the definitions of a function and of what it uses as segments, the used ones first.

    Raises:
        UnsupportedFunction: it has no source, uses variables of an outer function, or a global that
            cannot be written as source.
    """
    called = getattr(function, "__name__", "")
    if not called.isidentifier() or inspect.ismethod(function):
        raise UnsupportedFunction(f"{function!r} is not a named function: define it with 'def'")
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise UnsupportedFunction(
            f"{called} is a generator or a coroutine, which cannot be sent back: return a value"
        )
    if not isinstance(function, FunctionType):
        raise UnsupportedFunction(f"the source of {called} cannot be read: define it with 'def'")
    collected = _Definitions(called)
    collected.add(called, function)
    return "\n".join(collected.texts.values())


class _Definitions:
    """The definitions that a function needs, by name, in an order in which they can run."""

    def __init__(self, called: str) -> None:
        self.texts: dict[str, str] = {}
        self._called = called
        self._objects: dict[str, object] = {}

    def add(self, name: str, value: Any) -> None:
        """Add the definition of a name, after those that it uses."""
        if name in self._objects:
            if self._objects[name] is not value:
                raise UnsupportedFunction(
                    f"{self._called} uses two different objects with the name {name}: rename one"
                )
            return
        self._objects[name] = value
        self.texts[name] = self._definition(name, value)

    def _definition(self, name: str, value: Any) -> str:
        if isinstance(value, ModuleType):
            if _is_local(value):
                raise UnsupportedFunction(
                    f"{self._called} uses the module {value.__name__}, which pods do not have: "
                    "import its functions by name, or add it to the image"
                )
            return self._assignment(f"import {value.__name__} as {name}")
        if isinstance(value, FunctionType | type):
            return self._of_callable(name, value)
        with suppress(NoLiteral):
            return self._assignment(f"{name} = {write_literal(value, name)}")
        if getattr(value, "__module__", None) and _is_importable(value, name):
            return self._assignment(f"from {value.__module__} import {value.__name__} as {name}")
        raise UnsupportedFunction(
            f"{self._called} uses the global {name}, a {type(value).__name__} that cannot be sent: "
            "pass it as an argument, or create it in the function"
        )

    def _of_callable(self, name: str, value: "FunctionType | type") -> str:
        module = sys.modules.get(value.__module__)
        is_first = len(self._objects) == 1
        if not is_first and module is not None and not _is_local(module):
            outer = value.__qualname__.split(".")[0]
            return self._assignment(f"from {value.__module__} import {outer} as {name}")
        source, first_line = _source(value, self._called if is_first else name)
        surroundings = _surroundings(value)
        for used in sorted(_global_names(source)):
            if used in MODULE_ATTRIBUTES:
                continue
            if used in surroundings:
                self.add(used, surroundings[used])
            elif not hasattr(builtins, used) and used not in _assigned_names(source):
                raise UnsupportedFunction(f"{name} uses {used}, which is not defined")
        definition = segment(source, _file(value, name), first_line)
        defined = getattr(value, "__name__", name)
        alias = "" if defined == name else "\n" + self._assignment(f"{name} = {defined}")
        return definition + alias

    def _assignment(self, text: str) -> str:
        return segment(text, f"<globals of {self._called}>")


def _source(value: "FunctionType | type", name: str) -> tuple[str, int]:
    """Return the source of a function or a class, and the number of its first line."""
    inner = inspect.unwrap(value) if isinstance(value, FunctionType) else value
    if isinstance(inner, FunctionType) and inner.__closure__:
        names = ", ".join(inner.__code__.co_freevars)
        raise UnsupportedFunction(f"{name} uses {names} of an outer function: pass it as argument")
    try:
        lines, first_line = inspect.getsourcelines(value)
    except (OSError, TypeError) as error:
        raise UnsupportedFunction(f"the source of {name} cannot be read: {error}") from error
    return textwrap.dedent("".join(lines)).rstrip("\n"), max(first_line, 1)


def _file(value: "FunctionType | type", name: str) -> str:
    """Return the file that tracebacks show for a definition."""
    with suppress(TypeError):
        return inspect.getsourcefile(inspect.unwrap(value)) or f"<{name}>"
    return f"<{name}>"


def _surroundings(value: "FunctionType | type") -> dict[str, Any]:
    """Return the globals of the module in which a function or a class was defined."""
    unwrapped = inspect.unwrap(value) if isinstance(value, FunctionType) else value
    if isinstance(unwrapped, FunctionType):
        return unwrapped.__globals__
    return vars(sys.modules[value.__module__])


def _global_names(source: str) -> set[str]:
    """Return the names that a definition looks up outside itself."""
    annotations = __future__.annotations.compiler_flag
    code = compile(source, "<function>", "exec", flags=annotations, dont_inherit=True)
    return {
        instruction.argval
        for code_object in _code_objects(code)
        for instruction in dis.get_instructions(code_object)
        if instruction.opname in {"LOAD_GLOBAL", "LOAD_NAME"}
    }


def _code_objects(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_objects(constant)


def _assigned_names(source: str) -> set[str]:
    """Return all names that a definition binds: attributes of a class, imports in a function."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    bound |= {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
    }
    bound |= {
        (alias.asname or alias.name).partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return bound


def _is_importable(value: Any, name: str) -> bool:
    """Return whether a package has an object under the name that it gives itself."""
    module = sys.modules.get(value.__module__)
    own = getattr(value, "__name__", name)
    return module is not None and not _is_local(module) and getattr(module, own, None) is value


def _is_local(module: ModuleType) -> bool:
    """Return whether a module is the caller's: the main one, or in a folder of the caller's."""
    if module.__name__ == "__main__":
        return True
    file = getattr(module, "__file__", None)
    if file is None:
        return False
    path = Path(file).resolve()
    if any(path.is_relative_to(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix)):
        return False
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [Path.cwd(), *([Path(main).resolve().parent] if main else [])]
    return any(path.is_relative_to(folder) for folder in folders)
