"""``submit --dry-run=schedule``: whether, where and when a job would start, and for whom it would
make others end.

The job's PodGroup and pods are added to a copy of the cluster's state, and the scheduler's cycle
runs on it. Nothing is created.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.target import ClusterTarget
from gangline.cli.render.output import print_result

if TYPE_CHECKING:
    from gangline.api.volcano.scheduling import PodGroup
    from gangline.kube.client.client import ApiClient
    from gangline.operator.model.job import NormalizedJob
    from gangline.scheduler.cache.cache import SchedulerCache
    from gangline.scheduler.reporting.explain import Explanation

Manifest = dict[str, Any]


async def print_schedule(manifests: Sequence[Manifest], target: ClusterTarget, output: str) -> None:
    """Print for each job whether, where and when it would start.

    Raises:
        CommandError: none of the manifests is a job that the operator would run.
    """
    from gangline.cli.render.explanation import format_explanation  # noqa: PLC0415

    async with target.connect() as client:
        namespace = target.namespace_of(client)
        jobs = [job for each in manifests if (job := _read_job(each, namespace)) is not None]
        if not jobs:
            raise CommandError("no job given: --dry-run=schedule is for jobs", code=ExitCode.USAGE)
        explanations = [await _explain(client, job) for job in jobs]
    if not print_result(
        [asdict(each) for each in explanations], "json" if output == "json" else ""
    ):
        click.echo("\n\n".join(map(format_explanation, explanations)))


def _read_job(manifest: Manifest, namespace: str) -> "NormalizedJob | None":
    """Return a job as the operator reads it; None: it is no job.

    Raises:
        CommandError: the job is invalid.
    """
    import msgspec  # noqa: PLC0415

    from gangline.operator.main import all_frameworks  # noqa: PLC0415
    from gangline.operator.model.job import RawJob  # noqa: PLC0415
    from gangline.operator.settings import OperatorSettings  # noqa: PLC0415

    key = (manifest.get("apiVersion"), manifest.get("kind"))
    frameworks = {
        (version, f.kind.kind): f
        for f in all_frameworks(OperatorSettings())
        for version in f.kind.entry.api_versions
    }
    framework = frameworks.get((str(key[0]), str(key[1])))
    if framework is None:
        return None
    metadata = {"namespace": namespace, **manifest["metadata"]}
    raw = msgspec.json.decode(msgspec.json.encode({**manifest, "metadata": metadata}), type=RawJob)
    reading = framework.read(raw)
    if reading.spec_errors:
        raise CommandError(f"job {metadata.get('name')!r}: {reading.spec_errors}")
    return reading.job


async def _explain(client: "ApiClient", job: "NormalizedJob") -> "Explanation":
    from gangline.api.resources import PRIORITY_CLASSES  # noqa: PLC0415
    from gangline.cli.params.scheduler_settings import scheduler_settings  # noqa: PLC0415
    from gangline.scheduler.cache.convert import class_names  # noqa: PLC0415
    from gangline.scheduler.reporting.explain import explain_group, with_expected_start  # noqa: PLC0415
    from gangline.scheduler.reporting.replay import read_cluster_state  # noqa: PLC0415

    settings = await scheduler_settings(client, None)
    pods = list(_pods(job))
    names = {str(pod["spec"]["schedulerName"]) for pod in pods}
    answers_to = frozenset({*settings.scheduler_names, *names})
    state = await read_cluster_state(client, answers_to, settings.weights, settings.hierarchical)
    classes = (await client.list(PRIORITY_CLASSES)).items
    priorities = {name: each.value for each in classes for name in class_names(each)}
    key = add_job(state, job, pods, priorities, answers_to)
    now = time.time()
    explained = explain_group(state, key, now, settings.policy)
    return with_expected_start(replace(explained, kind="Job"), state, now, settings.policy)


def add_job(
    state: "SchedulerCache",
    job: "NormalizedJob",
    pods: Sequence[Manifest],
    priorities: Mapping[str, int],
    answers_to: frozenset[str],
) -> Any:
    """Add the PodGroup and the pods of a job to a state; return the key of the group."""
    import msgspec  # noqa: PLC0415

    from gangline.scheduler.cache.convert import group_info, pod_info  # noqa: PLC0415
    from gangline.scheduler.types.wire import ImagedPod, LeanPod, slim_pod  # noqa: PLC0415

    facts = group_info(_group(job), priorities)
    state.set_group(facts)
    for pod in list(state.members.get(facts.key, {})):
        state.remove_pod(pod)  # a job of this name exists: it would be replaced
    kind = ImagedPod if state.nodes.weights.images else LeanPod
    for manifest in pods:
        lean = slim_pod(msgspec.convert(manifest, kind, strict=False))
        state.set_pod(pod_info(lean, priorities, answers_to))
    return facts.key


def _group(job: "NormalizedJob") -> "PodGroup":
    import msgspec  # noqa: PLC0415

    from gangline.api.volcano.scheduling import PodGroup  # noqa: PLC0415
    from gangline.operator.policies.pod_group import create_pod_group  # noqa: PLC0415

    manifest = create_pod_group(job).manifest
    group = msgspec.convert(manifest, PodGroup)
    metadata = msgspec.structs.replace(group.metadata, creation_timestamp=_now())
    return msgspec.structs.replace(group, metadata=metadata)


def _pods(job: "NormalizedJob") -> Iterator[Manifest]:
    """Yield the pods of a job, as far as their placement depends on them."""
    from gangline.api.volcano.scheduling import GROUP_NAME_ANNOTATION  # noqa: PLC0415
    from gangline.operator.settings import OperatorSettings  # noqa: PLC0415
    from gangline.scheduler.types.wire import ROLE_KEY  # noqa: PLC0415

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
            name = f"{job.name}-{role.label}-{index}"
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
