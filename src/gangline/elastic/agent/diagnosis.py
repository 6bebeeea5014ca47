"""What ended a worker: its exit, its last words and the kernel's word, as one Failure.

``api.failure`` knows codes and signals. What only an agent can see is added here: the kernel's
out-of-memory killer, the exception that the worker wrote down, the patterns of broken devices.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gangline.api.failure import Blame, Failure, Remedy, of_exit

_CODE, _USER, _NODE, _PLATFORM = Blame.CODE, Blame.USER, Blame.NODE, Blame.PLATFORM
_RETRY, _MOVE, _STOP = Remedy.RETRY, Remedy.MOVE, Remedy.STOP

_PATTERNS: tuple[tuple[re.Pattern[str], str, Blame, Remedy, str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), cause, blame, remedy, explanation)
    for pattern, cause, blame, remedy, explanation in (
        (
            r"uncorrectable ECC|fallen off the bus|GPU is lost|\bXid\b|hardware error"
            r"|no CUDA-capable device is detected|driver/library version mismatch",
            "DeviceBroken",
            _NODE,
            _MOVE,
            "The accelerator or its driver failed.",
        ),
        (
            r"CUDA out of memory|OutOfMemoryError|NPU out of memory",
            "DeviceOutOfMemory",
            _USER,
            _RETRY,
            "The accelerator's memory was not enough; use smaller batches or more devices.",
        ),
        (
            r"EADDRINUSE|address already in use",
            "PortInUse",
            _PLATFORM,
            _RETRY,
            "The port of the workers' store was taken in the moment between choice and use.",
        ),
        (
            r"connection (was )?(reset|closed|refused|aborted)|broken pipe|socket timeout"
            r"|remote process (exited|has terminated)|NCCL.*(remote|peer)|heartbeat.*timed out",
            "PeerLost",
            _PLATFORM,
            _RETRY,
            "The connection to another worker broke; that worker, or its node, ended first.",
        ),
        (
            r"^(SyntaxError|IndentationError|TabError|ImportError|ModuleNotFoundError)\b",
            "CannotImport",
            _CODE,
            _STOP,
            "The program, or something it imports, cannot be loaded; it would not be next time.",
        ),
    )
)
ECHO = "PeerLost"
"""The cause of failures that follow from another worker's."""


@dataclass(frozen=True, slots=True)
class LastWords:
    """The exception that ended a worker."""

    message: str
    """Its type and text."""
    traceback: str


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """One worker's end."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    """As Python has it: negative for a signal."""
    when: float
    """Seconds since 1970."""
    failure: Failure
    words: LastWords | None = None


def read_last_words(path: Path) -> LastWords | None:
    """Read what ``record`` of torch, or our hook, wrote about an exception; None if nothing."""
    try:
        content = json.loads(path.read_bytes())["message"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a worker that was killed writes nothing, or half of it
    if not isinstance(content, dict):
        return LastWords(str(content), "")
    extra = content.get("extraInfo") or {}
    return LastWords(str(content.get("message", "")), str(extra.get("py_callstack", "")))


def diagnose(exit_code: int, words: LastWords | None, *, out_of_memory: bool) -> Failure | None:
    """Say what an exit means; None for success.

    Args:
        exit_code: as Python has it.
        words: the exception that the worker wrote down.
        out_of_memory: whether the kernel killed somebody here for want of memory meanwhile.
    """
    reason = "OOMKilled" if out_of_memory and exit_code == -9 else ""
    message = words.message if words else ""
    found = of_exit(exit_code, reason, message)
    if found is None or exit_code < 0 or not message:
        return found
    for pattern, cause, blame, remedy, explanation in _PATTERNS:
        if pattern.search(message):
            return Failure(cause, blame, remedy, explanation, found.exit_code, message)
    return found


def root_cause(failures: Iterable[WorkerFailure]) -> WorkerFailure:
    """Return the failure from which the others follow: the earliest that is no mere echo."""
    return min(failures, key=lambda each: (each.failure.cause == ECHO, each.when))
