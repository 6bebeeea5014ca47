"""A Python function as a job: every replica runs its source."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec

from gangline.api.resource_list import GPU
from gangline.api.resources import PYTORCH_JOBS
from gangline.sdk.functions.results import report_of
from gangline.sdk.functions.source import NO_ANNOTATIONS, UnsupportedFunction, complete_source

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
