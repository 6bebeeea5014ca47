"""The program of a forked interpreter: another script, module or command than that of the server.

A server for many programs is started with `PLACEHOLDER` as its script. The interpreter opens its
script after ``site``, so a forked process puts its own program in the place: then ``__main__``,
tracebacks and exit codes are those of a new interpreter. The place is found by its contents, in
``PyConfig`` and the lists that it refers to; where it is not found, nothing is forked.

Nothing here may be imported later: a forked process has another root.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_PLACEHOLDER_LENGTH = 4000
PLACEHOLDER = "/gangline-fork-server/".ljust(_PLACEHOLDER_LENGTH, "-")
"""A script that does not exist. Its length is the limit for the path of a program."""
_CONFIG_BYTES = 1024
"""Bytes of the configuration that are searched; it lies in a larger structure."""
_WORD, _WIDE = 8, 4
_PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 15, 35, 14
_MAX_COMMAND_NAME = 15


class Program:
    """What a command line of an interpreter runs."""

    def __init__(self, argv: Sequence[str]) -> None:
        """Read a command line whose options before the program have no values."""
        position = 1
        while position < len(argv) and argv[position][0:1] == "-" and argv[position] not in _LAST:
            position += 1
        rest = list(argv[position:])
        if not rest:
            raise ValueError("the command line has no program")
        self.module = self.command = self.script = ""
        if rest[0] == "-m":
            self.module, arguments = rest[1], rest[2:]
        elif rest[0] == "-c":
            self.command, arguments = rest[1], rest[2:]
        else:
            self.script, arguments = rest[0], rest[1:]
        self.arguments = [self.script or rest[0], *arguments]

    def folder(self) -> str:
        """Return the folder that the interpreter puts first on its path."""
        return os.path.dirname(os.path.realpath(self.script)) if self.script else os.getcwd()


_LAST = ("-m", "-c", "-")


class ProgramSlot:
    """The place of the program in the interpreter's configuration."""

    def __init__(self) -> None:
        """Find the place. Raises LookupError: this interpreter has another layout."""
        import ctypes

        self._ctypes: Any = ctypes
        if ctypes.sizeof(ctypes.c_void_p) != _WORD or ctypes.sizeof(ctypes.c_wchar) != _WIDE:
            raise LookupError("another architecture")
        if not hasattr(sys, "orig_argv"):
            raise LookupError("an old interpreter")
        self._readable = _readable_memory()
        start = self._configuration()
        self._script_slot, self._copies = 0, []
        for slot in range(start, start + _CONFIG_BYTES, _WORD):
            target = self._word(slot)
            if self._is_placeholder(target):
                if self._script_slot:
                    raise LookupError("two scripts")
                self._script_slot = slot
            else:
                # A list of arguments: the program is the first of them, or of a command line the
                # last one.
                for place in (target, target + _WORD * (len(sys.orig_argv) - 1)):
                    if self._is_placeholder(copy := self._word(place)):
                        self._copies.append(copy)
        # The module and the command come before the script; neither is set.
        if not self._script_slot or self._word(self._script_slot - _WORD):
            raise LookupError("no script")
        if self._word(self._script_slot - 2 * _WORD) or not self._copies:
            raise LookupError("no arguments")

    def fill(self, program: Program, argv: Sequence[str]) -> None:
        """Make a program that of this process."""
        place = self._word(self._script_slot)
        if program.script:
            script = program.script
            if not script.startswith("/"):
                script = f"{os.getcwd()}/{script}"
            self._write(place, script)
        else:
            text = program.module or program.command + "\n"
            behind = 1 if program.module else 2
            own = _allocate(self._ctypes, (len(text) + 1) * _WIDE)
            self._write(own, text)
            self._set_word(self._script_slot - behind * _WORD, own)
            self._set_word(self._script_slot, 0)
        for copy in self._copies:
            self._write(copy, program.arguments[0])
        sys.argv[:] = program.arguments
        sys.orig_argv[:] = argv

    def _configuration(self) -> int:
        try:
            configuration = self._ctypes.pythonapi._Py_GetConfig
        except AttributeError as error:
            raise LookupError("no access to the configuration") from error
        configuration.restype = self._ctypes.c_void_p
        return int(configuration())

    def _word(self, address: int) -> int:
        """Return the word at an address; 0 if it cannot be read."""
        if not self._is_readable(address, _WORD):
            return 0
        return int.from_bytes(self._ctypes.string_at(address, _WORD), sys.byteorder)

    def _set_word(self, address: int, value: int) -> None:
        self._ctypes.memmove(address, value.to_bytes(_WORD, sys.byteorder), _WORD)

    def _write(self, address: int, text: str) -> None:
        data = "".join([text, "\0"]).encode("utf-32-le", "surrogateescape")
        self._ctypes.memmove(address, data, len(data))

    def _is_placeholder(self, address: int) -> bool:
        expected = (PLACEHOLDER + "\0").encode("utf-32-le")
        if not self._is_readable(address, len(expected)):
            return False
        return bool(self._ctypes.string_at(address, len(expected)) == expected)

    def _is_readable(self, address: int, size: int) -> bool:
        return any(start <= address and address + size <= end for start, end in self._readable)


class CommandLine:
    """Sets what ``/proc/PID/cmdline``, ``environ`` and ``comm`` show of this process."""

    def __init__(self) -> None:
        """Check that the kernel allows it. Raises LookupError: it does not."""
        import ctypes

        self._ctypes: Any = ctypes
        self._libc = ctypes.CDLL(None, use_errno=True)
        fields = _stat_fields()
        self._map = [
            *(fields[number] for number in (26, 27, 45, 46, 47)),
            int(self._current_break()),
            *(fields[number] for number in (28, 48, 49, 50, 51)),
        ]
        if self._apply():
            raise LookupError("the kernel does not allow another command line")

    def set(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Show a command line, an environment, and the name of the program."""
        arguments = b"".join(os.fsencode(argument) + b"\0" for argument in argv)
        variables = b"".join(
            os.fsencode(name) + b"=" + os.fsencode(value) + b"\0"
            for name, value in environment.items()
        )
        text = arguments + variables + b"\0"
        # Never freed: the kernel reads it as long as the process lives.
        start = _allocate(self._ctypes, len(text))
        self._ctypes.memmove(start, text, len(text))
        self._map[5] = int(self._current_break())
        middle = start + len(arguments)
        self._map[7:11] = [start, middle, middle, middle + len(variables)]
        if self._apply():
            raise OSError(self._ctypes.get_errno(), "the command line cannot be set")
        name = os.fsencode(os.path.basename(argv[0]))[:_MAX_COMMAND_NAME]
        self._libc.prctl(_PR_SET_NAME, name, 0, 0, 0)

    def _current_break(self) -> int:
        self._libc.sbrk.restype = self._ctypes.c_void_p
        self._libc.sbrk.argtypes = [self._ctypes.c_ssize_t]
        return int(self._libc.sbrk(0))

    def _apply(self) -> int:
        ctypes = self._ctypes
        values = b"".join(value.to_bytes(_WORD, sys.byteorder) for value in self._map)
        # No other auxiliary vector, and no other file of the program.
        values += bytes(_WORD) + bytes(4) + b"\xff\xff\xff\xff"
        size = ctypes.c_size_t(len(values))
        pointer = ctypes.c_char_p(values)
        zero = ctypes.c_ulong(0)
        return int(
            self._libc.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), pointer, size, zero)
        )


def _allocate(ctypes: Any, size: int) -> int:
    """Allocate memory that the interpreter may free."""
    allocate = ctypes.pythonapi.PyMem_RawMalloc
    allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    return int(allocate(size))


def _stat_fields() -> dict[int, int]:
    """Return the fields of ``/proc/self/stat`` by their number in proc(5)."""
    with open("/proc/self/stat") as file:
        rest = file.read().rpartition(")")[2].split()
    return {number: int(text) for number, text in enumerate(rest[1:], start=4)}


def _readable_memory() -> list[tuple[int, int]]:
    spans = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, access = line.split(maxsplit=2)[:2]
            start, _, end = span.partition("-")
            if access.startswith("rw"):
                spans.append((int(start, 16), int(end, 16)))
    return spans
