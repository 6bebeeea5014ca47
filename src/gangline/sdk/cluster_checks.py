"""Checks of a cluster for common problems.

``check_cluster`` reads the facts; those that the user may not read are None. Each check is a
function of the facts.
"""

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from gangline.api.core.core import Lease
from gangline.api.core.node import Node
from gangline.api.core.pod import Pod
from gangline.api.core.storage import StorageClass
from gangline.api.meta.conditions import is_condition_true
from gangline.api.resource_list import GPU
from gangline.api.resources import (
    CUSTOM_RESOURCES,
    LEASES,
    NODES,
    PODS,
    SERVICES,
    STORAGE_CLASSES,
)
from gangline.api.verdict import pod_problem
from gangline.kube.client.client import ApiClient
from gangline.kube.errors import ApiError, Unreachable
from gangline.sdk.advice import brain_problem
from gangline.sdk.client import JobClient
from gangline.sdk.events import EventRecord, job_events
from gangline.sdk.jobs import AnyPod, Job
from gangline.sdk.lean_pods import LISTED_PODS

_REACTION_LIMIT = timedelta(seconds=30)
_SKEW = timedelta(seconds=5)
_NODE_SILENCE = timedelta(minutes=2)
_SHOWN = 3
"""Pods that a finding names at most."""
_RECENT = timedelta(hours=1)
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


class CheckStatus(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The user lacks the right to read the facts, or there is nothing to judge."""


@dataclass(frozen=True, slots=True)
class ClusterCheckResult:
    """Outcome of one check."""

    name: str
    status: CheckStatus
    finding: str
    remedy: str = ""


_Outcome = tuple[CheckStatus, *tuple[str, ...]]
"""Status, finding, and a remedy if there is one."""


@dataclass(slots=True)
class ClusterFacts:
    """What was read from the cluster; None for facts that the user may not read."""

    now: datetime
    version: str = ""
    missing_kinds: Sequence[str] | None = None
    """Kinds of ours that the server does not serve."""
    denied: Sequence[str] | None = None
    """Rights for submitting jobs that the user lacks, such as ``create pytorchjobs``."""
    nodes: Sequence[Node] | None = None
    pods: Sequence[AnyPod] | None = None
    components: Sequence[Pod] | None = None
    """Pods of Gangline itself, in all namespaces."""
    jobs: Sequence[Job] = ()
    storage_classes: Sequence[StorageClass] | None = None
    leases: Sequence[Lease] | None = None
    events: Sequence[EventRecord] | None = None
    services: Sequence[str] | None = None
    """Names of the services in kube-system."""
    metrics: bool = False
    history_problem: str = ""
    """What happened to the history of jobs, as the Brain reports it."""


def run_checks(facts: ClusterFacts) -> list[ClusterCheckResult]:
    """Run all checks."""
    checks = {
        "Job kinds": _definitions,
        "Rights": _rights,
        "Nodes": _nodes,
        "GPUs": _gpus,
        "Components": _components,
        "Operator": _operator,
        "Scheduler": _scheduler,
        "Storage": _storage,
        "DNS": _dns,
        "Clocks": _clock,
        "Images": _images,
        "Metrics": _metrics,
    }
    if facts.history_problem:
        checks["History"] = _history
    return [
        ClusterCheckResult("API server", CheckStatus.OK, facts.version),
        *(ClusterCheckResult(name, *check(facts)) for name, check in checks.items()),
    ]


def _definitions(facts: ClusterFacts) -> _Outcome:
    if facts.missing_kinds is None:
        return CheckStatus.UNKNOWN, "you may not read the discovery API"
    if facts.missing_kinds:
        missing = ", ".join(facts.missing_kinds)
        remedy = "kubectl apply --server-side -f deploy/crds"
        return CheckStatus.FAILED, f"the server lacks {missing}", remedy
    return CheckStatus.OK, "the server has all of them, in our version"


def _rights(facts: ClusterFacts) -> _Outcome:
    if facts.denied is None:
        return CheckStatus.UNKNOWN, "the server does not report them"
    if facts.denied:
        remedy = "ask the administrator of the cluster for a role with these rights"
        return CheckStatus.FAILED, f"you may not {', '.join(facts.denied)}", remedy
    return CheckStatus.OK, "you may submit jobs, read their logs and delete them"


def _nodes(facts: ClusterFacts) -> _Outcome:
    if facts.nodes is None:
        return CheckStatus.UNKNOWN, "you may not list nodes"
    ready = [node for node in facts.nodes if is_condition_true(node.status.conditions, "Ready")]
    silent = [node.metadata.name for node in facts.nodes if node not in ready]
    usable = [node for node in ready if not node.spec.unschedulable]
    if not usable:
        return CheckStatus.FAILED, "no node is ready", "'kubectl describe node' shows why"
    if silent:
        finding = f"{len(ready)} of {len(facts.nodes)} are ready; not {', '.join(silent[:5])}"
        return CheckStatus.WARNING, finding, f"kubectl describe node {silent[0]}"
    return CheckStatus.OK, f"{len(usable)} accept pods"


def _gpus(facts: ClusterFacts) -> _Outcome:
    if facts.nodes is None:
        return CheckStatus.UNKNOWN, "you may not list nodes"
    labelled = [n for n in facts.nodes if any("gpu" in key for key in n.metadata.labels)]
    offering = [n for n in facts.nodes if str(n.status.allocatable.get(GPU, "0")) != "0"]
    if offering:
        return CheckStatus.OK, f"{len(offering)} of {len(facts.nodes)} nodes offer {GPU}"
    if labelled:
        remedy = "check the pods of the NVIDIA device plugin on these nodes"
        finding = f"{len(labelled)} nodes have GPU labels, but none offers {GPU}"
        return CheckStatus.FAILED, finding, remedy
    return CheckStatus.WARNING, f"no node offers {GPU}: only jobs without --gpus can run"


def _components(facts: ClusterFacts) -> _Outcome:
    if facts.components is None:
        return CheckStatus.UNKNOWN, "you may not list the pods of all namespaces"
    if not facts.components:
        return CheckStatus.UNKNOWN, "no pods: they run outside of the cluster, if at all"
    bad = [pod for pod in facts.components if not is_condition_true(pod.status.conditions, "Ready")]
    if not bad:
        return CheckStatus.OK, f"{len(facts.components)} pods are ready"
    names: defaultdict[str, list[str]] = defaultdict(list)
    for pod in bad:
        problem = pod_problem(pod) or pod.status.phase
        names[problem].append(f"{pod.metadata.namespace}/{pod.metadata.name}")
    finding = "; ".join(f"{', '.join(pods)}: {problem}" for problem, pods in names.items())
    first = bad[0].metadata
    remedy = f"kubectl describe pod {first.name} -n {first.namespace}"
    return CheckStatus.FAILED, f"not ready: {finding}", remedy


def _operator(facts: ClusterFacts) -> _Outcome:
    ignored = [
        job.name
        for job in facts.jobs
        if not job.observed and facts.now - job.created > _REACTION_LIMIT
    ]
    if ignored:
        finding = f"no operator has reacted to {', '.join(ignored[:3])}"
        return CheckStatus.FAILED, finding, "start one: 'gangline operator'"
    if any(job.observed for job in facts.jobs) or _has_fresh_lease(facts, "operator"):
        return CheckStatus.OK, "reacts to jobs"
    return CheckStatus.UNKNOWN, "there is no job to check"


def _scheduler(facts: ClusterFacts) -> _Outcome:
    if facts.pods is None:
        return CheckStatus.UNKNOWN, "you may not list pods"
    waiting = [
        pod
        for pod in facts.pods
        if not pod.spec.node_name and pod.status.phase == "Pending" and not pod.status.conditions
        and facts.now - (pod.metadata.creation_timestamp or facts.now) > _REACTION_LIMIT
    ]  # fmt: skip
    if waiting:
        asked = ", ".join(sorted({pod.spec.scheduler_name or "default" for pod in waiting}))
        names = ", ".join(pod.metadata.name for pod in waiting[:_SHOWN])
        more = f" and {len(waiting) - _SHOWN} more" if len(waiting) > _SHOWN else ""
        finding = f"{names}{more} pending without a decision of scheduler {asked!r}"
        return CheckStatus.FAILED, finding, "start ours with 'gangline scheduler'"
    if any(pod.spec.node_name for pod in facts.pods) or _has_fresh_lease(facts, "scheduler"):
        return CheckStatus.OK, "schedules pods"
    return CheckStatus.UNKNOWN, "there is no pod to check"


def _has_fresh_lease(facts: ClusterFacts, component: str) -> bool:
    """True if a lease whose name contains that of the component was renewed recently."""
    return any(
        lease.spec.renew_time and facts.now - lease.spec.renew_time < _NODE_SILENCE
        for lease in facts.leases or ()
        if component in lease.metadata.name
    )


def _storage(facts: ClusterFacts) -> _Outcome:
    if facts.storage_classes is None:
        return CheckStatus.UNKNOWN, "you may not list storage classes"
    default = [
        storage_class.metadata.name
        for storage_class in facts.storage_classes
        if storage_class.metadata.annotations.get(_DEFAULT_CLASS) == "true"
    ]
    if len(default) == 1:
        return CheckStatus.OK, f"the default class is {default[0]}"
    if default:
        finding = f"several classes are the default: {', '.join(default)}"
        return CheckStatus.WARNING, finding, "keep the annotation on one of them"
    remedy = "set a class in each claim, or annotate one as the default"
    return CheckStatus.WARNING, "claims without a class get no volume", remedy


def _dns(facts: ClusterFacts) -> _Outcome:
    failing = [
        event for event in facts.events or ()
        if "DNS" in event.reason or "name resolution" in event.message
    ]  # fmt: skip
    if failing:
        return CheckStatus.WARNING, failing[-1].message, "check CoreDNS in kube-system"
    if facts.services is None:
        return CheckStatus.UNKNOWN, "you may not read kube-system"
    others = [service for service in facts.services if not service.startswith("gangline-")]
    if not others:
        return CheckStatus.UNKNOWN, "no service in kube-system: nodes may provide DNS"
    if not any("dns" in service for service in others):
        remedy = "install CoreDNS: replicas find each other by DNS"
        return CheckStatus.FAILED, "there is no DNS service in kube-system", remedy
    return CheckStatus.OK, "there is a DNS service"


def _clock(facts: ClusterFacts) -> _Outcome:
    times = [
        lease.spec.renew_time
        for lease in facts.leases or ()
        if lease.metadata.namespace == "kube-node-lease" and lease.spec.renew_time
    ]
    if not times:
        return CheckStatus.UNKNOWN, "no node has renewed a lease"
    newest = max(times)
    if newest - facts.now > _SKEW:
        ahead = (newest - facts.now).total_seconds()
        finding = f"a node's clock is {ahead:.0f} s ahead of this machine's"
        return CheckStatus.WARNING, finding, "synchronise both with NTP"
    if facts.now - newest > _NODE_SILENCE:
        behind = (facts.now - newest).total_seconds()
        finding = f"the newest heartbeat of a node is {behind:.0f} s old"
        return CheckStatus.WARNING, finding, "synchronise clocks with NTP; check the nodes"
    return CheckStatus.OK, "nodes and this machine agree"


def _images(facts: ClusterFacts) -> _Outcome:
    if facts.events is None:
        return CheckStatus.UNKNOWN, "you may not list events"
    failed = [
        event for event in facts.events
        if facts.now - event.last < _RECENT and event.type == "Warning"
        and ("pull" in event.message.lower() or event.reason == "ErrImagePull")
    ]  # fmt: skip
    if failed:
        remedy = "check the image's name, the registry, and --image-pull-secret"
        return CheckStatus.WARNING, f"{failed[-1].subject}: {failed[-1].message}", remedy
    return CheckStatus.OK, "no pull has failed in the last hour"


def _metrics(facts: ClusterFacts) -> _Outcome:
    if facts.metrics:
        return CheckStatus.OK, "there is a metrics API"
    remedy = "install metrics-server to see CPU and memory in 'gangline top'"
    return CheckStatus.WARNING, "there is no metrics API", remedy


def _history(facts: ClusterFacts) -> _Outcome:
    remedy = "stop the Brain and put a backup in the place of the new file, or start it again"
    return CheckStatus.WARNING, facts.history_problem, remedy


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


async def check_cluster(
    client: ApiClient,
    namespace: str,
    *,
    jobs: Sequence[Job] = (),
    pods: Sequence[AnyPod] = (),
) -> list[ClusterCheckResult]:
    """Read the facts and run all checks.

    Args:
        client: reads the cluster.
        namespace: where jobs are submitted.
        jobs: those of the namespace, if they are known; else they are read.
        pods: as ``jobs``.

    Raises:
        Unreachable: no server answers.
    """
    version = await client.request_json("GET", "/version")
    async with asyncio.TaskGroup() as group:

        def ask(question: Coroutine[Any, Any, T]) -> "asyncio.Task[T | None]":
            return group.create_task(_or_none(question))

        kinds = ask(_missing_kinds(client))
        denied = ask(_denied(client, namespace))
        nodes = ask(client.list(NODES))
        listed_pods = None if pods else ask(client.list(LISTED_PODS, namespace))
        components = ask(client.list(PODS, labels="app.kubernetes.io/part-of=gangline"))
        classes, leases = ask(client.list(STORAGE_CLASSES)), ask(client.list(LEASES))
        services = ask(client.list(SERVICES, "kube-system"))
        events = ask(job_events(client, namespace))
        listed_jobs = None if jobs else ask(JobClient(client).list(namespace))
        problem = ask(brain_problem(client))
        metrics = ask(client.request_json("GET", "/apis/metrics.k8s.io/v1beta1"))
    listed = _items(services.result())
    facts = ClusterFacts(
        now=datetime.now(UTC),
        version=str(version.get("gitVersion", "")),
        missing_kinds=kinds.result(),
        denied=denied.result(),
        nodes=_items(nodes.result()),
        pods=_items(listed_pods.result()) if listed_pods else pods,
        components=_items(components.result()),
        jobs=(listed_jobs.result() if listed_jobs else jobs) or (),
        storage_classes=_items(classes.result()),
        leases=_items(leases.result()),
        events=events.result(),
        services=[service.metadata.name for service in listed] if listed is not None else None,
        metrics=metrics.result() is not None,
        history_problem=problem.result() or "",
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


async def _missing_kinds(client: ApiClient) -> list[str]:
    """Return kinds of ours that the server does not serve in our version."""
    served: set[tuple[str, str]] = set()
    for version in sorted({resource.api_version for resource in CUSTOM_RESOURCES}):
        answer = await _or_none(client.request_json("GET", f"/apis/{version}"))
        resources = (answer or {}).get("resources", [])
        served |= {(version, entry["kind"]) for entry in resources}
    return [
        entry.kind for entry in CUSTOM_RESOURCES if (entry.api_version, entry.kind) not in served
    ]


async def _denied(client: ApiClient, namespace: str) -> list[str]:
    answers = await asyncio.gather(
        *(
            client.is_allowed(
                namespace=namespace, verb=verb, group=group, resource=resource, subresource=sub
            )
            for verb, group, resource, sub in _REQUIRED_RIGHTS
        )
    )
    return [
        f"{verb} {resource}{f'/{sub}' if sub else ''}"
        for (verb, _, resource, sub), allowed in zip(_REQUIRED_RIGHTS, answers, strict=True)
        if not allowed
    ]
