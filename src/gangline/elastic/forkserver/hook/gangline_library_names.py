"""The names in a shared library that can be those of variables of the environment.

A library in C reads a variable by its name, so one that lacks the name does not read it. A search
through all libraries of PyTorch takes a tenth of a second for each name. So a server that forks
programs with many variables collects the names of its libraries once.
"""

from __future__ import annotations

import mmap
import re

_NAME = re.compile(rb"[A-Z_][A-Z0-9_]{1,63}\0")
"""Names of another form are searched for in the file."""
_HEADER_BYTES, _SECTION_BYTES = 64, 64
_STRINGS = (b".rodata", b".data", b".data.rel.ro", b".rodata.str1.1", b".rodata.str1.8")


class LibraryNames:
    """The names in libraries, by path."""

    def __init__(self) -> None:
        """Begin without libraries."""
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
