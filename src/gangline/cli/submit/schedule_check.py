"""``submit --dry-run=schedule``: whether, where and when a job would start, what it would evict.

The PodGroups and pods of the jobs are added to a copy of the cluster's state in the order of the
jobs, and the scheduler's cycle runs on it. Nothing is created.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.target import ClusterTarget
from gangline.cli.render.output import print_result

if TYPE_CHECKING:
    from gangline.api.volcano.scheduling import PodGroup
    from gangline.kube.client.client import ApiClient
    from gangline.operator.model.framework import RuntimeCopy
    from gangline.operator.model.job import NormalizedJob
    from gangline.scheduler.cache.cache import SchedulerCache
    from gangline.scheduler.reporting.explain import Explanation

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodConversion:
    """What the conversion of pods depends on in a cluster."""

    priorities: Mapping[str, int]
    """Values of priority classes by name."""
    answers_to: frozenset[str]
    """Scheduler names whose pods are scheduled."""
    namespaces: Mapping[str, Mapping[str, str]]
    """Labels of namespaces, which selectors in affinity terms refer to."""


async def print_schedule(manifests: Sequence[Manifest], target: ClusterTarget, output: str) -> None:
    """Print for each job whether, where and when it would start.

    Raises:
        CommandError: none of the manifests is a job that the operator would run.
    """
    from gangline.cli.render.explanation import format_explanation

    async with target.connect() as client:
        namespace = target.namespace_of(client)
        read = [await _read_job(client, manifest, namespace) for manifest in manifests]
        jobs = [job for job in read if job is not None]
        if not jobs:
            raise CommandError("no job given: --dry-run=schedule is for jobs", code=ExitCode.USAGE)
        explanations = await _explain(client, jobs)
    if not print_result(
        [asdict(explanation) for explanation in explanations], "json" if output == "json" else ""
    ):
        click.echo("\n\n".join(map(format_explanation, explanations)))


async def _read_job(
    client: "ApiClient", manifest: Manifest, namespace: str
) -> "NormalizedJob | None":
    """Return a job as the operator reads it; None: it is no job.

    Raises:
        CommandError: the job is invalid, or its runtime does not exist.
    """
    import msgspec

    from gangline.operator.main import all_frameworks
    from gangline.operator.model.framework import NeedsRuntime
    from gangline.operator.model.job import RawJob
    from gangline.operator.settings import OperatorSettings

    frameworks = {
        (version, framework.kind.kind): framework
        for framework in all_frameworks(OperatorSettings())
        for version in framework.kind.entry.api_versions
    }
    framework = frameworks.get((str(manifest.get("apiVersion")), str(manifest.get("kind"))))
    if framework is None:
        return None
    metadata = {"namespace": namespace, **manifest["metadata"]}
    raw = msgspec.json.decode(msgspec.json.encode({**manifest, "metadata": metadata}), type=RawJob)
    if isinstance(framework, NeedsRuntime):
        runtime = await _read_runtime(client, *framework.runtime_of(raw), metadata["namespace"])
        reading = framework.read_with_runtime(raw, runtime, is_known=True)
    else:
        reading = framework.read(raw)
    if reading.spec_errors:
        raise CommandError(f"job {metadata.get('name')!r}: {reading.spec_errors}")
    return reading.job


async def _read_runtime(client: "ApiClient", kind: str, name: str, namespace: str) -> "RuntimeCopy":
    """Return the present runtime of a TrainJob.

    Raises:
        CommandError: it does not exist.
    """
    import msgspec

    from gangline.api import resources
    from gangline.api.jobs.training_runtime import TRAINING_RUNTIME
    from gangline.kube.errors import NotFound
    from gangline.operator.model.framework import RuntimeCopy

    own = kind == TRAINING_RUNTIME
    resource: Any = resources.TRAINING_RUNTIMES if own else resources.CLUSTER_TRAINING_RUNTIMES
    try:
        runtime = await client.get(resource, name, namespace if own else None)
    except NotFound as error:
        raise CommandError(f"there is no {kind} {name!r}", code=ExitCode.NOT_FOUND) from error
    return RuntimeCopy(
        msgspec.json.encode(runtime), runtime.metadata.resource_version, is_stored=False
    )


async def _explain(client: "ApiClient", jobs: Sequence["NormalizedJob"]) -> "list[Explanation]":
    """Explain jobs that are submitted together: each competes with the others."""
    from gangline.api.resources import NAMESPACES, PRIORITY_CLASSES
    from gangline.cli.render.explanation import scheduler_settings
    from gangline.scheduler.cache.convert import class_names
    from gangline.scheduler.reporting.explain import explain_group, with_expected_start
    from gangline.scheduler.reporting.replay import list_if_readable, read_cluster_state

    settings = await scheduler_settings(client, None)
    pods = [list(_pods(job)) for job in jobs]
    names = {str(pod["spec"]["schedulerName"]) for pod in chain.from_iterable(pods)}
    answers_to = frozenset({*settings.scheduler_names, *names})
    state = await read_cluster_state(client, answers_to, settings.weights, settings.hierarchical)
    conversion = PodConversion(
        priorities={
            name: priority_class.value
            for priority_class in await list_if_readable(client, PRIORITY_CLASSES)
            for name in class_names(priority_class)
        },
        answers_to=answers_to,
        namespaces={
            namespace.metadata.name: namespace.metadata.labels
            for namespace in await list_if_readable(client, NAMESPACES)
        },
    )
    keys = [add_job(state, job, own, conversion) for job, own in zip(jobs, pods, strict=True)]
    now = time.time()
    explained = [explain_group(state, key, now, settings.policy) for key in keys]
    return [
        with_expected_start(replace(explanation, kind="Job"), state, now, settings.policy)
        for explanation in explained
    ]


def add_job(
    state: "SchedulerCache",
    job: "NormalizedJob",
    pods: Sequence[Manifest],
    conversion: PodConversion,
) -> Any:
    """Add the PodGroup and the pods of a job to a state; return the key of the group."""
    import msgspec

    from gangline.scheduler.cache.convert import group_info, pod_info
    from gangline.scheduler.wire import ImagedPod, LeanPod, slim_pod

    facts = group_info(_group(job), conversion.priorities)
    state.set_group(facts)
    for pod in list(state.members.get(facts.key, {})):
        state.remove_pod(pod)  # a job of this name exists: it would be replaced
    kind = ImagedPod if state.nodes.weights.images else LeanPod
    for manifest in pods:
        lean = slim_pod(msgspec.convert(manifest, kind, strict=False))
        state.set_pod(
            pod_info(lean, conversion.priorities, conversion.answers_to, conversion.namespaces)
        )
    return facts.key


def _group(job: "NormalizedJob") -> "PodGroup":
    import msgspec

    from gangline.api.volcano.scheduling import PodGroup
    from gangline.operator.policies.pod_group import create_pod_group

    manifest = create_pod_group(job).manifest
    group = msgspec.convert(manifest, PodGroup)
    metadata = msgspec.structs.replace(group.metadata, creation_timestamp=_now())
    return msgspec.structs.replace(group, metadata=metadata)


def _pods(job: "NormalizedJob") -> Iterator[Manifest]:
    """Yield the pods of a job, as far as their placement depends on them."""
    from gangline.api.volcano.scheduling import GROUP_NAME_ANNOTATION
    from gangline.operator.policies.replica_tracker import tracker_of
    from gangline.operator.settings import OperatorSettings
    from gangline.scheduler.wire import ROLE_KEY

    tracker = tracker_of(job)
    created = _now().isoformat()
    priority_class = job.policy.scheduling.priority_class
    for role in job.roles:
        template = role.template
        written = dict(template.get("metadata") or {})
        annotations = {
            **(written.get("annotations") or {}),
            GROUP_NAME_ANNOTATION: job.name,
            ROLE_KEY: role.label,
        }
        for index in range(role.replicas):
            name = tracker.pod_name(job, role, index)
            spec = {"schedulerName": OperatorSettings().scheduler_name, **template["spec"]}
            if priority_class and not spec.get("priorityClassName"):
                spec["priorityClassName"] = priority_class
            yield {
                "metadata": {
                    **written,
                    "name": name,
                    "namespace": job.meta.namespace,
                    "uid": name,
                    "annotations": annotations,
                    "creationTimestamp": created,
                },
                "spec": spec,
            }


def _now() -> datetime:
    return datetime.now(UTC)
