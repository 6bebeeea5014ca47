"""A Python function as a job: every replica runs its source, and its log brings the result back.

A rank prints its result pickled, in base64, in lines with ``MARK``, its rank, and the number of the
line of how many; text of the function without a line break may precede them. A log is the only way
back that every cluster has. Reading a result runs what the job has written: read only results of
jobs that you trust.
"""

import base64
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec

from gangline.api.resource_list import GPU
from gangline.api.resources import PYTORCH_JOBS
from gangline.sdk.functions.source import NO_ANNOTATIONS, UnsupportedFunction, complete_source

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
    for rank, chunks in parts.items():
        if len(chunks) != expected[rank]:
            raise NoResult(
                f"the result of rank {rank} has {expected[rank]} lines, and its log {len(chunks)}"
            )
    return {
        rank: pickle.loads(base64.b64decode("".join(chunks)))
        for rank, chunks in sorted(parts.items())
    }


MAX_SOURCE = 100_000
"""Limit in bytes: every kernel accepts a command argument of this length."""


@dataclass(frozen=True, slots=True)
class FunctionJobOptions:
    """Image, resources and policies of the replicas of a function."""

    image: str
    workers: int = 1
    gpus: int = 0
    cpu: str = ""
    memory: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    retry: int = 0
    queue: str = ""


class FunctionOptions(TypedDict, total=False):
    """The fields of ``FunctionJobOptions`` but the image, as keyword arguments."""

    workers: int
    gpus: int
    cpu: str
    memory: str
    environment: Mapping[str, str]
    retry: int
    queue: str


def default_name(function: Callable[..., object]) -> str:
    """Return the name of a function as that of a job."""
    return getattr(function, "__name__", "").replace("_", "-").strip("-").lower()


def build_function_job(
    name: str,
    function: Callable[..., object],
    arguments: Mapping[str, Any],
    shape: FunctionJobOptions,
) -> dict[str, Any]:
    """Return a PyTorchJob that calls a function in each of its pods, one of them the master.

    Raises:
        UnsupportedFunction: the function cannot be sent as source (``complete_source``).
    """
    amounts: dict[str, Any] = {"cpu": shape.cpu, "memory": shape.memory, GPU: shape.gpus}
    amounts = {key: value for key, value in amounts.items() if value}
    container: dict[str, Any] = {
        "name": "pytorch",
        "image": shape.image,
        "command": ["python", "-u", "-c", render_script(function, arguments)],
        "env": [{"name": key, "value": value} for key, value in shape.environment.items()],
    }
    if amounts:
        container["resources"] = {"requests": amounts, "limits": dict(amounts)}
    replica = {
        "restartPolicy": "OnFailure" if shape.retry else "Never",
        "template": {"spec": {"containers": [container]}},
    }
    replicas = {"Master": {"replicas": 1, **replica}}
    if shape.workers > 1:
        replicas["Worker"] = {"replicas": shape.workers - 1, **replica}
    policy: dict[str, Any] = {"cleanPodPolicy": "None", "backoffLimit": shape.retry}
    if shape.queue:
        policy["schedulingPolicy"] = {"queue": shape.queue}
    return {
        "apiVersion": PYTORCH_JOBS.api_version,
        "kind": PYTORCH_JOBS.kind,
        "metadata": {"name": name},
        "spec": {"runPolicy": policy, "pytorchReplicaSpecs": replicas},
    }


def render_script(function: Callable[..., object], arguments: Mapping[str, Any]) -> str:
    """Return a program that defines a function, calls it, and reports its result.

    Raises:
        UnsupportedFunction: see ``complete_source``; or the program is too large, or an argument is
            not plain data.
    """
    source = complete_source(function)
    called = function.__name__
    try:
        written = msgspec.json.encode(arguments).decode()
    except TypeError as error:
        raise UnsupportedFunction(f"arguments of {called} must be plain data: {error}") from error
    call = f"{called}(**json.loads({written!r}))"
    script = f"{NO_ANNOTATIONS}\nimport json\n\n{source}\n\n{report_of(call)}"
    if len(script.encode()) > MAX_SOURCE:
        raise UnsupportedFunction(
            f"{called} is too large to be sent as source: add it to the image"
        )
    return script
