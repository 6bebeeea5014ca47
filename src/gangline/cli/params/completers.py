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
    from gangline.api.core.pod import Pod
    from gangline.api.meta.resource import Resource
    from gangline.kube.client.client import ApiClient

ParsedOptions = Mapping[str, Any]
"""Options of the line so far, by parameter name."""
ClusterQuery = Callable[["ApiClient", str, ParsedOptions], Awaitable[Iterable[str]]]
Completer = Callable[[click.Context, click.Parameter, str], list[str]]

QUERY_TIMEOUT_S = 1.0
"""Timeout of a request for candidates: a user who has pressed a key does not wait longer."""
QUERY_TIMEOUT_VARIABLE = "GANGLINE_COMPLETION_TIMEOUT"
"""Environment variable with another timeout in seconds, for distant clusters."""


def _cluster_completer(question: ClusterQuery) -> Completer:
    """Return a click completion callback that runs a query against the cluster."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        typed = context.params.get(parameter.name or "") or ()
        # An argument that may be repeated offers no value twice.
        typed = typed if isinstance(typed, tuple) else ()
        names = set(_run_query(question, _parsed_options(context))).difference(typed)
        return sorted(name for name in names if name.startswith(incomplete))

    return complete


def _parsed_options(context: click.Context) -> ParsedOptions:
    """Return the options of the line so far.

    If the line ends with an option, click has not yet assigned the arguments: the first is the job.
    """
    first = next((word for word in context.args if not word.startswith("-")), "")
    return context.params | {"job": context.params.get("job") or first}


def _run_query(question: ClusterQuery, given: ParsedOptions) -> Iterable[str]:
    import asyncio

    from gangline.cli.params.target import resolve_target
    from gangline.kube.errors import ApiError, ConfigError
    from gangline.sdk.client import JobError

    text = os.environ.get(QUERY_TIMEOUT_VARIABLE, "")
    timeout_s = float(text) if text.isdecimal() and int(text) else QUERY_TIMEOUT_S

    async def asked() -> Iterable[str]:
        target = resolve_target(given)
        async with asyncio.timeout(timeout_s), target.connect() as client:
            return await question(client, target.namespace_of(client), given)

    try:
        with _process_deadline(2 * timeout_s), open(os.devnull) as nothing:
            sys.stdin = nothing  # credential plugins must not prompt for a password
            return asyncio.run(asked())
    except (ApiError, ConfigError, JobError, CommandError, OSError, TimeoutError):
        return ()


@contextmanager
def _process_deadline(seconds: float) -> Iterator[None]:
    """Exit the process at a time limit, for calls that cannot be cancelled, such as DNS lookups."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


async def object_names(
    client: "ApiClient", resource: "Resource[Any]", namespace: str | None
) -> list[str]:
    """Return the names of a kind's objects; none if the cluster lacks the kind or forbids it."""
    from dataclasses import replace

    from gangline.api.meta.objects import Object
    from gangline.kube.errors import Forbidden, NotFound

    try:
        listing = await client.list(replace(resource, type=Object), namespace)
    except (Forbidden, NotFound):
        return []
    return [item.metadata.name for item in listing.items]


async def _jobs(client: "ApiClient", namespace: str, given: ParsedOptions) -> Iterable[str]:
    from asyncio import gather

    from gangline.sdk.client import resolve_kinds

    kinds = resolve_kinds(given.get("kind") or "")
    names_by_kind = await gather(
        *(object_names(client, kind.resource, namespace) for kind in kinds)
    )
    return [name for names in names_by_kind for name in names]


async def _pods(client: "ApiClient", namespace: str, given: ParsedOptions) -> "list[Pod]":
    """Return the pods of the job that the line names."""
    from gangline.api.resources import PODS
    from gangline.sdk.jobs import JOB_NAME_LABEL

    if not given.get("job"):
        return []
    return (await client.list(PODS, namespace, labels=f"{JOB_NAME_LABEL}={given['job']}")).items


async def _instances(client: "ApiClient", namespace: str, given: ParsedOptions) -> Iterable[str]:
    """Return the replicas of a job that may have a log, those of deleted pods included."""
    from gangline.sdk.client import JobClient, JobError
    from gangline.sdk.jobs import replica_name
    from gangline.sdk.logs import deleted_pods

    pods = await _pods(client, namespace, given)
    with suppress(JobError):
        job = await JobClient(client).get(given.get("job") or "", namespace)
        pods = [*pods, *(await deleted_pods(client, job) or ())]
    return sorted({replica_name(pod) for pod in pods})


async def _containers(client: "ApiClient", namespace: str, given: ParsedOptions) -> Iterable[str]:
    pods = await _pods(client, namespace, given)
    return [
        container.name
        for pod in pods
        for container in (*pod.spec.init_containers, *pod.spec.containers)
    ]


async def _port_targets(client: "ApiClient", namespace: str, given: ParsedOptions) -> Iterable[str]:
    """Return candidates for targets of port forwarding."""
    from asyncio import gather

    from gangline.api.resources import PODS, SERVICES

    jobs, services, pods = await gather(
        _jobs(client, namespace, given),
        object_names(client, SERVICES, namespace),
        object_names(client, PODS, namespace),
    )
    return [*jobs, *(f"svc/{name}" for name in services), *(f"pod/{name}" for name in pods)]


def _objects(constant: str) -> ClusterQuery:
    """Query the names of one kind, by the name of its constant in ``gangline.api.resources``."""

    async def question(client: "ApiClient", namespace: str, given: ParsedOptions) -> Iterable[str]:
        from gangline.api import resources

        resource: Resource[Any] = getattr(resources, constant)
        return await object_names(client, resource, namespace if resource.namespaced else None)

    return question


def job_kinds(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete kinds of jobs, without asking a cluster."""
    from gangline.sdk.kinds import JOB_KINDS

    return [kind.trainer for kind in JOB_KINDS if kind.trainer.startswith(incomplete.lower())]


def profiles(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete profiles of the user's settings."""
    from gangline.cli.params.profiles import read_user_settings

    with suppress(CommandError):
        return [name for name in read_user_settings().profiles if name.startswith(incomplete)]
    return []


def contexts(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete contexts of the kubeconfig."""
    from pathlib import Path

    from gangline.cli.params.target import ClusterTarget, resolve_target
    from gangline.kube.config.kubeconfig import read_kubeconfig
    from gangline.kube.errors import ConfigError

    with suppress(CommandError, ConfigError):
        files = ClusterTarget(resolve_target(context.params).kubeconfig).config().origin.split(", ")
        contexts = read_kubeconfig([Path(file) for file in files]).contexts
        return [name for name in contexts if name.startswith(incomplete)]
    return []


jobs = _cluster_completer(_jobs)
instances = _cluster_completer(_instances)
containers = _cluster_completer(_containers)
port_targets = _cluster_completer(_port_targets)
namespaces = _cluster_completer(_objects("NAMESPACES"))
nodes = _cluster_completer(_objects("NODES"))
queues = _cluster_completer(_objects("QUEUES"))
priority_classes = _cluster_completer(_objects("PRIORITY_CLASSES"))
claims = _cluster_completer(_objects("PERSISTENT_VOLUME_CLAIMS"))
