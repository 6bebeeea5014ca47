"""The program of a pod that calls a function, and what it writes into the log about the call.

The log is the only way back that every cluster has. Text without a line break may precede a line.

- A result is pickled, in base64, in lines with ``RESULT``, the rank, the number of the line and the
  number of lines. Reading it runs what the job has written: read only results of trusted jobs.
- A failure is a line with ``FAILURE`` and a JSON object; the lines of the traceback follow.

The source arrives in segments. Each has a header with its first line, its number of lines, and the
file of the caller, so tracebacks show the caller's files, line numbers and source.
"""

import base64
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gangline.sdk.logs import LogLine

RESULT = "gangline-result"
FAILURE = "gangline-failure"
MAX_RESULT = 1_000_000
"""Limit of a pickled result in bytes: logs are rotated at some megabytes."""
MAX_MESSAGE = 10_000
"""Limit of the message of an exception, in characters."""
ARGUMENTS = "_gangline_arguments"
"""The global that has the arguments until the function is called."""

# The functions and names of this program are not those of the function's module, which is a module
# of its own: it may define its own ``print``. It runs on Python 3.7 and newer.
BOOTSTRAP = f'''
import sys
import types


def define(script, module):
    import __future__
    import ast
    import linecache

    lines, at, files = script.split("\\n"), 0, {{}}
    while at < len(lines):
        first, count, file = lines[at].split(" ", 2)
        first, count = int(first), int(count)
        text = lines[at + 1 : at + 1 + count]
        shown = files.setdefault(file, [])
        shown.extend(["\\n"] * (first - 1 + count - len(shown)))
        shown[first - 1 : first - 1 + count] = [line + "\\n" for line in text]
        linecache.cache[file] = (0, None, shown, file)
        tree = ast.increment_lineno(ast.parse("\\n".join(text), file), first - 1)
        postponed = __future__.annotations.compiler_flag
        exec(compile(tree, file, "exec", postponed, True), vars(module))
        at += 1 + count


def report(value):
    import base64
    import os
    import pickle

    if value is None:
        return
    try:
        data = pickle.dumps(value)
    except Exception as error:
        kind = type(value).__name__
        raise TypeError(f"the result is a {{kind}} that cannot be pickled: {{error}}") from None
    if len(data) > {MAX_RESULT}:
        limit = "more than {MAX_RESULT}: write it to a volume"
        raise ValueError(f"the result has {{len(data)}} bytes, {{limit}}")
    text, width = base64.b64encode(data).decode(), 4096
    lines = [text[at : at + width] for at in range(0, len(text), width)]
    rank, total = os.environ.get("RANK", "0"), len(lines)
    for number, line in enumerate(lines, 1):
        print("{RESULT}", rank, f"{{number}}/{{total}}", line, flush=True)


def fail(error):
    import json
    import os
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    try:
        message = str(error)[:{MAX_MESSAGE}]
    except Exception:
        message = ""
    rank, kind, count = os.environ.get("RANK", "0"), type(error).__name__, text.count("\\n")
    head = json.dumps({{"rank": int(rank), "type": kind, "message": message, "lines": count}})
    sys.stderr.write(f"{FAILURE} {{head}}\\n{{text}}")
    sys.stderr.flush()


def main(script, name):
    sys.argv[1:] = []
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    try:
        define(script, module)
        report(vars(module)[name](**vars(module).pop("{ARGUMENTS}")))
    except SystemExit as error:
        if error.code not in (None, 0):
            fail(error)
        raise
    except BaseException as error:
        fail(error)
        sys.exit(1)


main(*sys.argv[1:])
'''


class NoResult(LookupError):
    """The rank has reported no result, or its log is incomplete."""


@dataclass(frozen=True, slots=True)
class RemoteFailure:
    """An exception that the function has raised on one rank."""

    rank: int
    replica: str
    type: str
    """Name of the class of the exception."""
    message: str
    traceback: str
    time: str
    """When it was reported (RFC 3339)."""


class FunctionFailed(RuntimeError):
    """The job of a function has failed; the message has the cause, or the function's traceback."""

    def __init__(self, message: str, failures: tuple[RemoteFailure, ...] = ()) -> None:
        super().__init__(message, failures)
        self.failures = failures
        """The exceptions of the ranks, the first one first; empty if no rank has reported one."""

    def __str__(self) -> str:
        return str(self.args[0])

    @property
    def rank(self) -> int | None:
        """The rank that raised the first exception; None if no rank has reported one."""
        return self.failures[0].rank if self.failures else None

    @property
    def type(self) -> str:
        """Name of the class of the first exception, such as ``ValueError``."""
        return self.failures[0].type if self.failures else ""

    @property
    def message(self) -> str:
        """Message of the first exception."""
        return self.failures[0].message if self.failures else ""

    @property
    def traceback(self) -> str:
        """Traceback of the first exception, with the frames and lines of the function."""
        return self.failures[0].traceback if self.failures else ""


def failure_text(failures: tuple[RemoteFailure, ...]) -> str:
    """Return what happened on which ranks, with the traceback of the first one."""
    first, *later = failures
    message = first.message.strip().partition("\n")[0]
    error = f"{first.type}: {message}" if message else first.type
    ranks = ", ".join(f"{failure.rank} ({failure.type})" for failure in later)
    others = f"\n\nLater on other ranks: {ranks}" if later else ""
    return f"on rank {first.rank} ({first.replica}): {error}\n\n{first.traceback}{others}"


class _FailureLine(msgspec.Struct):
    rank: int
    type: str
    message: str
    lines: int


def is_report(line: str) -> bool:
    """Return whether a line of a log is written for ``read_results`` or ``read_failures``."""
    return f"{RESULT} " in line or f"{FAILURE} {{" in line


def read_results(lines: Iterable[str]) -> dict[int, Any]:
    """Return the results in the lines of logs by rank; the last one of a rank counts.

    Raises:
        NoResult: lines of a result are missing, or it has classes that are not defined here.
    """
    parts: dict[int, list[str]] = {}
    expected: dict[int, int] = {}
    for line in lines:
        _, mark, result = line.partition(f"{RESULT} ")
        if not mark:
            continue
        rank_word, place, text = result.split(" ", 2)
        rank, (number, total) = int(rank_word), map(int, place.split("/"))
        if number == 1:
            parts[rank] = []
        parts.setdefault(rank, []).append(text.strip())
        expected[rank] = total
    for rank, chunks in parts.items():
        if len(chunks) != expected[rank]:
            raise NoResult(
                f"the result of rank {rank} has {expected[rank]} lines, and its log {len(chunks)}"
            )
    return {rank: _unpickle(rank, "".join(chunks)) for rank, chunks in sorted(parts.items())}


def _unpickle(rank: int, text: str) -> Any:
    try:
        return pickle.loads(base64.b64decode(text))
    except Exception as error:
        raise NoResult(
            f"the result of rank {rank} cannot be read here ({error}): return plain data, or "
            "install the packages of the image"
        ) from error


def read_failures(lines: Iterable[LogLine]) -> tuple[RemoteFailure, ...]:
    """Return the exceptions in the lines of logs, the first one first; one of each replica."""
    heads: dict[str, tuple[_FailureLine, str]] = {}
    traces: dict[str, list[str]] = {}
    for line in lines:
        _, mark, head = line.text.partition(f"{FAILURE} ")
        if mark and head.startswith("{"):
            heads[line.replica] = msgspec.json.decode(head, type=_FailureLine), line.time
            traces[line.replica] = []
        elif line.replica in heads and len(traces[line.replica]) < heads[line.replica][0].lines:
            traces[line.replica].append(line.text)
    failures = [
        RemoteFailure(head.rank, replica, head.type, head.message, "\n".join(traces[replica]), time)
        for replica, (head, time) in heads.items()
    ]
    return tuple(sorted(failures, key=lambda failure: failure.time))


def segment(text: str, file: str, first_line: int = 1) -> str:
    """Return source with its header: ``define`` of the bootstrap executes it."""
    return f"{first_line} {text.count(chr(10)) + 1} {file}\n{text}"


def container_command(source: str, name: str, arguments: Mapping[str, str]) -> list[str]:
    """Return the command of a container that calls a function of a source.

    Args:
        source: segments.
        name: of the function.
        arguments: an expression for each.
    """
    items = ", ".join(f"{key!r}: {value}" for key, value in arguments.items())
    given = segment(f"{ARGUMENTS} = {{{items}}}", f"<arguments of {name}>")
    return ["python", "-u", "-c", BOOTSTRAP, f"{given}\n{source}", name]
