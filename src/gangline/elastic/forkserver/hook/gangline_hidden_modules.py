"""Modules that a forked process has already, but must not see before it imports them.

A fork of the server begins with the modules of a new interpreter. An import of a hidden module
makes it visible, with all that it imports; changes of the environment and output follow then. The
environment is compared with that of the recorded import before. If a variable differs that the
import has read, or may have read, the program is started again in the same process, without any
preloaded module.
"""

from __future__ import annotations

import _frozen_importlib
import mmap
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import ModuleType
    from typing import Any

    from gangline_import_records import ImportRecord  # type: ignore[import-not-found]

_READ_LATER = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "MASTER_",
    "NCCL_",
    "GLOO_",
    "TORCH_NCCL_",
)
"""Prefixes of variables that libraries name, but read only when a device or a group is opened."""
_NAME = re.compile(rb"[A-Z_][A-Z0-9_]{1,63}\0")
"""Names of another form are searched for in the file."""
_HEADER_BYTES, _SECTION_BYTES = 64, 64
_STRINGS = (b".rodata", b".data", b".data.rel.ro", b".rodata.str1.1", b".rodata.str1.8")
_LOADER_SOURCE = """
def _find_and_load(name, import_):
    module = expose(name)
    return original(name, import_) if module is None else module
"""


class HiddenModules:
    """The modules that the server has imported, in a fork of it."""

    def __init__(
        self,
        baseline: Collection[str],
        records: dict[str, ImportRecord],
        varying: Collection[str],
        libraries: Any = None,
    ) -> None:
        """Prepare before the fork.

        Args:
            baseline: modules of a new interpreter.
            records: recorded imports.
            varying: variables that differ between processes; no recorded import has read them.
            libraries: the collected names of libraries; None to search in the files.
        """
        self._records = records
        self._libraries = libraries or LibraryNames()
        self._varying = frozenset(os.fsencode(name) for name in varying)
        self._modules = {
            name: module for name, module in sys.modules.items() if name not in baseline
        }
        self._order = {name: number for number, name in enumerate(self._modules)}
        self._attributes = self._late_attributes()
        self._start_again: Callable[[str, str], None] = _fail
        self._original: Any = None

    @property
    def names(self) -> Collection[str]:
        """The names of the hidden modules."""
        return self._order

    def hide(self, start_again: Callable[[str, str], None]) -> None:
        """Hide all modules of the server.

        Args:
            start_again: called with a module and a variable on which its import depends. Must not
                return.
        """
        self._start_again = start_again
        for name in self._modules:
            sys.modules.pop(name, None)
        for parent, attribute, _ in self._attributes.values():
            parent.pop(attribute, None)
        self._original = _frozen_importlib._find_and_load  # type: ignore[attr-defined]
        namespace = {"expose": self._expose, "original": self._original}
        # With this file name the interpreter leaves the function out of tracebacks.
        exec(compile(_LOADER_SOURCE, "<frozen importlib._bootstrap>", "exec"), namespace)
        _frozen_importlib._find_and_load = namespace["_find_and_load"]  # type: ignore[attr-defined]

    def _expose(self, name: str) -> ModuleType | None:
        if name not in self._modules:
            return None
        names = sorted(self._closure(name), key=self._order.__getitem__)
        if variable := self._changed_variable(names):
            self._start_again(name, variable)
        for each in names:
            self._expose_one(each)
        return sys.modules.get(name)

    def _expose_one(self, name: str) -> None:
        module = sys.modules[name] = self._modules.pop(name)
        if late := self._attributes.get(name):
            parent, attribute, value = late
            parent.setdefault(attribute, value)
        if renew := _RENEW.get(name):
            renew(module)
        record = self._records.get(name)
        if record is None:
            return
        for key, value in record.writes:
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
        for stream, text in zip((sys.stdout, sys.stderr), record.output, strict=True):
            if text and stream is not None:
                stream.write(text.decode(errors="replace"))
                stream.flush()

    def _closure(self, name: str) -> set[str]:
        """Return a hidden module, its parents, and all hidden modules that they import."""
        found: set[str] = set()
        remaining = [name]
        while remaining:
            each = remaining.pop()
            if each in found or each not in self._modules:
                continue
            found.add(each)
            remaining += self._next(each)
        return found

    def _changed_variable(self, names: list[str]) -> str | None:
        """Return a variable that differs now and on which an import depends."""
        now: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        records = [self._records[name] for name in names if name in self._records]
        written = {os.fsencode(key) for record in records for key, _ in record.writes}
        changed: dict[int, list[bytes]] = {}
        for record in records:
            before = record.environment
            if id(before) not in changed:
                keys = {key for key in before.keys() | now if before.get(key) != now.get(key)}
                changed[id(before)] = sorted(keys - self._varying - written)
            for key in changed[id(before)]:
                if key in record.reads or self._is_named_in(key, record.libraries):
                    return os.fsdecode(key)
        return None

    def _is_named_in(self, key: bytes, libraries: Collection[str]) -> bool:
        """Return whether a library contains the name of a variable, and so may read it."""
        if os.fsdecode(key).startswith(_READ_LATER):
            return False
        return any(self._libraries.contains(path, key) for path in libraries)

    def _late_attributes(self) -> dict[str, tuple[dict[str, Any], str, Any]]:
        """Return the attributes of packages that name modules which the package does not import."""
        late = {}
        reach = self._reach()
        for name in self._records.keys() & self._modules.keys():
            parent, _, attribute = name.rpartition(".")
            package, module = self._modules.get(parent), self._modules[name]
            if package is None or reach[parent] >> self._order[name] & 1:
                continue
            namespace = vars(package)
            if namespace.get(attribute) is module:
                late[name] = (namespace, attribute, module)
        return late

    def _reach(self) -> dict[str, int]:
        """Return the closures of all modules, as sets of bits by the order of the modules."""
        edges = {
            name: [target for target in self._next(name) if target in self._order]
            for name in self._order
        }
        reach = {name: 1 << number for name, number in self._order.items()}
        grows = True
        while grows:
            grows = False
            for name in reversed(edges):
                reached = reach[name]
                for target in edges[name]:
                    reached |= reach[target]
                if reached != reach[name]:
                    reach[name], grows = reached, True
        return reach

    def _next(self, name: str) -> list[str]:
        record = self._records.get(name)
        return [name.rpartition(".")[0], *(record.imported if record else ())]


class LibraryNames:
    """The names in shared libraries that can be those of variables of the environment.

    A library in C reads a variable by its name, so one that lacks the name does not read it. A
    search through all libraries of PyTorch takes a tenth of a second for each name. So a server
    that forks programs with many variables collects the names of its libraries once.
    """

    def __init__(self) -> None:
        self._found: dict[str, bytes] = {}

    def collect(self, path: str) -> None:
        """Collect the names of a library; one that cannot be read is searched later."""
        if path in self._found:
            return
        try:
            with (
                open(path, "rb") as file,
                mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content,
            ):
                names = set()
                for start, end in _string_sections(content):
                    names.update(_NAME.findall(content, start, end))
        except (OSError, ValueError, IndexError):
            return
        self._found[path] = b"".join(sorted(names))

    def contains(self, path: str, name: bytes) -> bool:
        """Return whether a library may read the variable."""
        found = self._found.get(path)
        if found is not None and _NAME.fullmatch(name + b"\0"):
            return name + b"\0" in found
        try:
            with (
                open(path, "rb") as file,
                mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content,
            ):
                return content.find(name + b"\0") >= 0
        except (OSError, ValueError):
            return True  # it has been replaced: nothing is known


def _string_sections(content: mmap.mmap) -> list[tuple[int, int]]:
    """Return where an ELF file has its constants; all of the file if that is unknown."""
    everything = [(0, len(content))]
    if content[:6] != b"\x7fELF\x02\x01":
        return everything

    def number(offset: int, size: int) -> int:
        return int.from_bytes(content[offset : offset + size], "little")

    table, count, names = number(40, 8), number(60, 2), number(62, 2)
    if not table or not count or number(58, 2) != _SECTION_BYTES:
        return everything
    texts = number(table + names * _SECTION_BYTES + 24, 8)
    sections = []
    for section in range(table, table + count * _SECTION_BYTES, _SECTION_BYTES):
        start = texts + number(section, 4)
        name = content[start : content.find(b"\0", start)]
        if name.startswith(_STRINGS) and number(section + 4, 4) != 8:  # SHT_NOBITS
            offset = number(section + 24, 8)
            sections.append((offset, offset + number(section + 32, 8)))
    return sections or everything


def _fail(module: str, variable: str) -> None:
    raise RuntimeError(f"{module} depends on {variable}")


def _renew_authentication(process: Any) -> None:
    process.current_process()._config["authkey"] = process.AuthenticationString(os.urandom(32))


_RENEW: dict[str, Callable[[Any], object]] = {
    "multiprocessing.process": _renew_authentication,
    "numpy.random.mtrand": lambda mtrand: mtrand._rand.seed(),
    "torch": lambda torch: torch.default_generator.seed(),
}
"""Random state that two processes must not share. That of ``random`` is renewed by a fork."""
