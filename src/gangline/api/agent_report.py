"""The report of an agent's failure: a text for people, which the verdict about its pod reads too.

The launcher prints it and writes it as the termination message of its container. An exit code only
says how the launcher ended; the report says what the agent has found, such as the rank that hangs.

::

    train.py FAILED on node-1: Hang
      Hang: No worker has made progress for 300 s. Message: rank 1 is at train.py:6
      not restarted: all 3 restarts are used up

The container's program may write any text there, so only causes of ``api.failure`` are read.
"""

import re
from dataclasses import dataclass

from gangline.api.failure import Blame, Failure, blame_of_cause

_HEAD = re.compile(r"^\S.* FAILED on \S+: (\w+)$", re.MULTILINE)
_FIRST = "first to fail: "
_NEXT_PART = re.compile(
    rf"\n(?:  (?:{_FIRST}|then: |not restarted: )|Traceback of rank \d|\.\.\.\n)"
)
_WORKER = re.compile(rf"{_FIRST}rank (\d+) \([^)]*\): ")
_FAILURE = re.compile(r"(\w+)(?: \(exit code \d+\))?: (.*?)(?:(?:^| )Message: (.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AgentReport:
    """What an agent reports about the failure that ended it."""

    cause: str
    blame: Blame
    explanation: str
    message: str
    rank: int | None
    """The worker that failed first; None if the message names the workers."""


def format_head(command: str, node: str, cause: str) -> str:
    return f"{command} FAILED on {node}: {cause}"


def format_failure(failure: Failure) -> str:
    return f"  {failure}"


def format_worker(failure: Failure, rank: int, local_rank: int, pid: int, *, is_first: bool) -> str:
    role = _FIRST if is_first else "then: "
    return f"  {role}rank {rank} (local rank {local_rank}, pid {pid}): {failure}"


def format_decision(reason: str) -> str:
    return f"  not restarted: {reason}"


def read_agent_report(text: str) -> AgentReport | None:
    """Read the last report in a termination message or the end of a log; None without one."""
    heads = list(_HEAD.finditer(text))
    if not heads or (blame := blame_of_cause(heads[-1][1])) is None:
        return None
    named = heads[-1]
    first = _NEXT_PART.split(text[named.end() :].lstrip(), maxsplit=1)[0]
    worker = _WORKER.match(first)
    failure = _FAILURE.fullmatch(first[worker.end() :] if worker else first)
    if failure is None or failure[1] != named[1]:
        return None
    return AgentReport(
        cause=named[1],
        blame=blame,
        explanation=failure[2].strip(),
        message=(failure[3] or "").strip(),
        rank=int(worker[1]) if worker else None,
    )
