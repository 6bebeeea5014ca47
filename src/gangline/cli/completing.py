"""Shell completion of names that the cluster knows: jobs, replicas, namespaces, queues.

Each key press asks the cluster once, for one second at most. On any error the shell gets no
candidates, because a message would appear in the middle of the line that the user types.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.errors import CommandError

if TYPE_CHECKING:
    from gangline.api.pod import Pod
    from gangline.api.resource import Resource
    from gangline.kube.client import Client

Given = Mapping[str, Any]
"""Options of the line so far, by parameter name."""
Question = Callable[["Client", str, Given], Awaitable[Iterable[str]]]
Completer = Callable[[click.Context, click.Parameter, str], list[str]]

PATIENCE_S = 1.0
"""Timeout of a request for candidates: a user who has pressed a key does not wait longer."""
PATIENCE_VARIABLE = "GANGLINE_COMPLETION_TIMEOUT"
"""Environment variable with another timeout in seconds, for distant clusters."""


def _asking(question: Question) -> Completer:
    """Return a click completion callback that runs a query against the cluster."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        typed = context.params.get(parameter.name or "") or ()
        known = set(_answer(question, _given(context)))
        return sorted(
            name for name in known if name.startswith(incomplete) and not _is_among(name, typed)
        )

    return complete


def _given(context: click.Context) -> Given:
    """Return the options of the line so far.

    If the line ends with an option, click has not yet assigned the arguments: the first is the job.
    """
    first = next((word for word in context.args if not word.startswith("-")), "")
    return context.params | {"job": context.params.get("job") or first}


def _is_among(name: str, typed: object) -> bool:
    """True if an argument that may be repeated has this value already."""
    return isinstance(typed, tuple) and name in typed


def _answer(question: Question, given: Given) -> Iterable[str]:
    import asyncio  # noqa: PLC0415 - slow to import, and most completions ask no cluster

    from gangline.cli.target import target_of  # noqa: PLC0415
    from gangline.kube.errors import ApiError, ConfigError  # noqa: PLC0415
    from gangline.sdk.client import JobError  # noqa: PLC0415

    patience_s = _patience_s(os.environ.get(PATIENCE_VARIABLE, ""))

    async def asked() -> Iterable[str]:
        target = target_of(given)
        async with asyncio.timeout(patience_s), target.connect() as client:
            return await question(client, target.namespace_of(client), given)

    try:
        with _at_most(2 * patience_s), open(os.devnull) as nothing:
            sys.stdin = nothing  # credential plugins must not prompt for a password
            return asyncio.run(asked())
    except (ApiError, ConfigError, JobError, CommandError, OSError, TimeoutError):
        return ()


def _patience_s(text: str) -> float:
    return float(text) if text.isdecimal() and int(text) else PATIENCE_S


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Exit the process at a time limit, for calls that cannot be cancelled, such as DNS lookups."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


async def _names(client: "Client", resource: "Resource[Any]", namespace: str | None) -> list[str]:
    """Return the names of a kind's objects; none if the cluster lacks the kind or forbids it."""
    from dataclasses import replace  # noqa: PLC0415

    from gangline.api.meta import Object  # noqa: PLC0415
    from gangline.kube.errors import Forbidden, NotFound  # noqa: PLC0415

    try:
        found = await client.list(replace(resource, type=Object), namespace)
    except (Forbidden, NotFound):
        return []
    return [each.metadata.name for each in found.items]


async def _jobs(client: "Client", namespace: str, given: Given) -> Iterable[str]:
    from asyncio import gather  # noqa: PLC0415

    from gangline.sdk.client import kinds_called  # noqa: PLC0415

    kinds = kinds_called(given.get("kind") or "")
    found = await gather(*(_names(client, kind.resource, namespace) for kind in kinds))
    return [name for names in found for name in names]


async def _pods(client: "Client", namespace: str, given: Given) -> "list[Pod]":
    """Return the pods of the job that the line names."""
    from gangline.api.resources import PODS  # noqa: PLC0415
    from gangline.sdk.jobs import JOB_NAME_LABEL  # noqa: PLC0415

    if not given.get("job"):
        return []
    return (await client.list(PODS, namespace, labels=f"{JOB_NAME_LABEL}={given['job']}")).items


async def _instances(client: "Client", namespace: str, given: Given) -> Iterable[str]:
    from gangline.sdk.jobs import short_name  # noqa: PLC0415

    return map(short_name, await _pods(client, namespace, given))


async def _containers(client: "Client", namespace: str, given: Given) -> Iterable[str]:
    pods = await _pods(client, namespace, given)
    return [
        container.name
        for pod in pods
        for container in (*pod.spec.init_containers, *pod.spec.containers)
    ]


async def _places(client: "Client", namespace: str, given: Given) -> Iterable[str]:
    """Return candidates for targets of port forwarding."""
    from asyncio import gather  # noqa: PLC0415

    from gangline.api.resources import PODS, SERVICES  # noqa: PLC0415

    jobs, services, pods = await gather(
        _jobs(client, namespace, given),
        _names(client, SERVICES, namespace),
        _names(client, PODS, namespace),
    )
    return [*jobs, *(f"svc/{name}" for name in services), *(f"pod/{name}" for name in pods)]


def _objects(constant: str) -> Question:
    """Query the names of one kind, by the name of its constant in ``gangline.api.resources``."""

    async def question(client: "Client", namespace: str, given: Given) -> Iterable[str]:
        from gangline.api import resources  # noqa: PLC0415

        resource: Resource[Any] = getattr(resources, constant)
        return await _names(client, resource, namespace if resource.namespaced else None)

    return question


def kinds(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete kinds of jobs, without asking a cluster."""
    from gangline.sdk.kinds import JOB_KINDS  # noqa: PLC0415

    return [kind.trainer for kind in JOB_KINDS if kind.trainer.startswith(incomplete.lower())]


def profiles(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete profiles of the user's settings."""
    from gangline.cli.profiles import read_profiles  # noqa: PLC0415

    with suppress(CommandError):
        return [name for name in read_profiles().profiles if name.startswith(incomplete)]
    return []


def contexts(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete contexts of the kubeconfig."""
    from pathlib import Path  # noqa: PLC0415

    from gangline.cli.target import Target, target_of  # noqa: PLC0415
    from gangline.kube.errors import ConfigError  # noqa: PLC0415
    from gangline.kube.kubeconfig import read_kubeconfig  # noqa: PLC0415

    with suppress(CommandError, ConfigError):
        files = Target(target_of(context.params).kubeconfig).config().origin.split(", ")
        known = read_kubeconfig([Path(file) for file in files]).contexts
        return [name for name in known if name.startswith(incomplete)]
    return []


jobs = _asking(_jobs)
instances = _asking(_instances)
containers = _asking(_containers)
places = _asking(_places)
namespaces = _asking(_objects("NAMESPACES"))
nodes = _asking(_objects("NODES"))
queues = _asking(_objects("QUEUES"))
priority_classes = _asking(_objects("PRIORITY_CLASSES"))
claims = _asking(_objects("PERSISTENT_VOLUME_CLAIMS"))
