"""Results of a function that runs as a job: from the ranks to the caller, as lines of their logs.

A rank prints its result pickled, in base64, in lines with ``MARK``, its rank, and the number of the
line of how many; text of the function without a line break may precede them. A log is the only way
back that every cluster has. Reading a result runs what the job has written: read only results of
jobs that you trust.
"""

import base64
import pickle
from collections.abc import Iterable
from typing import Any

MARK = "gangline-result"
MAX_RESULT = 1_000_000
"""Limit of a pickled result in bytes: logs are rotated at some megabytes."""

_REPORT = """
def _gangline_report(value):
    import base64, os, pickle
    if value is None:
        return
    try:
        data = pickle.dumps(value)
    except Exception as error:
        raise TypeError(f"the result is a {type(value).__name__} that cannot be pickled") from error
    if len(data) > %d:
        raise ValueError(f"the result has {len(data)} bytes, more than %d: write it to a volume")
    text, width = base64.b64encode(data).decode(), 4096
    lines = [text[at : at + width] for at in range(0, len(text), width)]
    for number, line in enumerate(lines, 1):
        print("%s", os.environ.get("RANK", "0"), f"{number}/{len(lines)}", line, flush=True)
"""


class NoResult(LookupError):
    """The rank has reported no result, or its log is incomplete."""


def report_of(call: str) -> str:
    """Return the lines of a program that report the value of an expression."""
    return _REPORT % (MAX_RESULT, MAX_RESULT, MARK) + f"\n\n_gangline_report({call})\n"


def is_result(line: str) -> bool:
    """Return whether a line of a log is a part of a result."""
    return f"{MARK} " in line


def read_results(lines: Iterable[str]) -> dict[int, Any]:
    """Return the results in the lines of logs by rank; the last one of a rank counts.

    Raises:
        NoResult: lines of a result are missing.
    """
    parts: dict[int, list[str]] = {}
    expected: dict[int, int] = {}
    for line in filter(is_result, lines):
        rank_word, place, text = line.partition(f"{MARK} ")[2].split(" ", 2)
        rank, (number, total) = int(rank_word), map(int, place.split("/"))
        if number == 1:
            parts[rank] = []
        parts.setdefault(rank, []).append(text.strip())
        expected[rank] = total
    for rank, found in parts.items():
        if len(found) != expected[rank]:
            raise NoResult(
                f"the result of rank {rank} has {expected[rank]} lines, and its log {len(found)}"
            )
    return {
        rank: pickle.loads(base64.b64decode("".join(found)))
        for rank, found in sorted(parts.items())
    }
