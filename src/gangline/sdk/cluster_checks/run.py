"""Reads the facts for the checks from a cluster; facts that may not be read are None."""

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from gangline.api.resources import (
    CUSTOM_RESOURCES,
    LEASES,
    NODES,
    PODS,
    SERVICES,
    STORAGE_CLASSES,
)
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, Unreachable
from gangline.sdk.client import JobClient
from gangline.sdk.cluster_checks.checks import ClusterCheckResult, ClusterFacts, run_checks
from gangline.sdk.events import job_events

T = TypeVar("T")

_REQUIRED_RIGHTS = (
    ("create", "kubeflow.org", "pytorchjobs", ""),
    ("list", "kubeflow.org", "pytorchjobs", ""),
    ("delete", "kubeflow.org", "pytorchjobs", ""),
    ("list", "", "pods", ""),
    ("get", "", "pods", "log"),
    ("create", "", "pods", "exec"),
    ("list", "", "events", ""),
    ("create", "", "secrets", ""),
)
"""Verb, group, resource and subresource of each right that submitting and reading jobs needs."""


async def check_cluster(client: ApiClient, namespace: str) -> list[ClusterCheckResult]:
    """Read the facts and run all checks.

    Raises:
        Unreachable: no server answers.
    """
    version = await client.request_json("GET", "/version")
    async with asyncio.TaskGroup() as group:

        def ask(question: Coroutine[Any, Any, T]) -> "asyncio.Task[T | None]":
            return group.create_task(_or_none(question))

        kinds = ask(_missing_kinds(client))
        denied = ask(_denied(client, namespace))
        nodes, pods = ask(client.list(NODES)), ask(client.list(PODS, namespace))
        classes, leases = ask(client.list(STORAGE_CLASSES)), ask(client.list(LEASES))
        services = ask(client.list(SERVICES, "kube-system"))
        events = ask(job_events(client, namespace))
        jobs = ask(JobClient(client).list(namespace))
        metrics = ask(client.request_json("GET", "/apis/metrics.k8s.io/v1beta1"))
    facts = ClusterFacts(
        now=datetime.now(UTC),
        version=str(version.get("gitVersion", "")),
        missing_kinds=kinds.result(),
        denied=denied.result(),
        nodes=_items(nodes.result()),
        pods=_items(pods.result()),
        jobs=jobs.result() or (),
        storage_classes=_items(classes.result()),
        leases=_items(leases.result()),
        events=events.result(),
        services=_names(services.result()),
        metrics=metrics.result() is not None,
    )
    return run_checks(facts)


async def _or_none(question: Coroutine[Any, Any, T]) -> T | None:
    """Return the answer of the server; None if it returns an error."""
    try:
        return await question
    except Unreachable:
        raise
    except ApiError:
        return None


def _items(listing: Any) -> Sequence[Any] | None:
    return None if listing is None else listing.items


def _names(listing: Any) -> Sequence[str] | None:
    return None if listing is None else [each.metadata.name for each in listing.items]


async def _missing_kinds(client: ApiClient) -> list[str]:
    """Return kinds of ours that the server does not serve in our version."""
    served: set[tuple[str, str]] = set()
    for version in sorted({resource.api_version for resource in CUSTOM_RESOURCES}):
        answer = await _or_none(client.request_json("GET", f"/apis/{version}"))
        resources = (answer or {}).get("resources", [])
        served |= {(version, each["kind"]) for each in resources}
    return [each.kind for each in CUSTOM_RESOURCES if (each.api_version, each.kind) not in served]


async def _denied(client: ApiClient, namespace: str) -> list[str]:
    answers = await asyncio.gather(*(_may(client, namespace, *need) for need in _REQUIRED_RIGHTS))
    return [
        f"{verb} {resource}{f'/{sub}' if sub else ''}"
        for (verb, _, resource, sub), allowed in zip(_REQUIRED_RIGHTS, answers, strict=True)
        if not allowed
    ]


async def _may(
    client: ApiClient, namespace: str, verb: str, group: str, resource: str, subresource: str
) -> bool:
    attributes = {
        "namespace": namespace,
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await client.request_json("POST", path, body=body)
    return bool((answer.get("status") or {}).get("allowed"))
