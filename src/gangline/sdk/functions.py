"""A Python function as a job: every replica runs its source."""

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gangline.api.resource_list import GPU
from gangline.api.resources import PYTORCH_JOBS
from gangline.renamed import renamed

__getattr__ = renamed(
    __name__,
    {
        "NotShippable": "UnsupportedFunction",
        "Shape": "FunctionJobOptions",
        "function_job": "build_function_job",
        "script_of": "render_script",
    },
)

MAX_SOURCE = 100_000
"""Limit in bytes: every kernel accepts a command argument of this length."""


class UnsupportedFunction(ValueError):
    """The function cannot be sent as source; the message has the reason."""


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


def build_function_job(
    name: str,
    function: Callable[..., object],
    arguments: Mapping[str, Any],
    shape: FunctionJobOptions,
) -> dict[str, Any]:
    """Return a PyTorchJob that calls a function in each of its pods, one of them the master.

    Raises:
        UnsupportedFunction: the function has no source, or uses variables of its surroundings.
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
    """Return a program that defines a function and calls it.

    Raises:
        UnsupportedFunction: no source, a source that is too large, or variables of an outer
            function.
    """
    called = getattr(function, "__name__", "")
    if not called.isidentifier() or inspect.ismethod(function):
        raise UnsupportedFunction(f"{function!r} is not a named function: define it with 'def'")
    if getattr(function, "__closure__", None):
        names = ", ".join(function.__code__.co_freevars)
        raise UnsupportedFunction(
            f"{called} uses {names} of an outer function: pass it as argument"
        )
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise UnsupportedFunction(f"the source of {called} cannot be read: {error}") from error
    try:
        written = msgspec.json.encode(arguments).decode()
    except TypeError as error:
        raise UnsupportedFunction(f"arguments of {called} must be plain data: {error}") from error
    script = f"import json\n\n{source}\n\n{called}(**json.loads({written!r}))\n"
    if len(script.encode()) > MAX_SOURCE:
        raise UnsupportedFunction(
            f"{called} is too large to be sent as source: add it to the image"
        )
    return script
