"""The common part of all ways to submit: check, print or create, follow, wait for the end.

With ``--like-history`` similar jobs of the past give first what a manifest leaves out. Objects with
the annotation ``gangline.dev/belongs-to`` are created after their job, with an owner reference to
it. If one of them cannot be created, its job is deleted again.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click
import msgspec

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.event_loop import background
from gangline.cli.params.target import ClusterTarget
from gangline.cli.render.output import print_manifests, print_status, serialize
from gangline.cli.submit.flags import OWNER_ANNOTATION, Manifest
from gangline.cli.submit.manifests import check_manifests

if TYPE_CHECKING:
    from gangline.cli.render.live_view import PlainView
    from gangline.cli.render.log_lines import LogLineWriter
    from gangline.sdk.advice import BrainClient
    from gangline.sdk.client import JobClient
    from gangline.sdk.goodput import Goodput
    from gangline.sdk.jobs import Job
    from gangline.sdk.kinds import JobKind
    from gangline.sdk.logs import LogOptions

_PROGRESS_POLL_S = 1.0


async def fill_from_history(manifests: Sequence[Manifest], target: ClusterTarget) -> list[Manifest]:
    """Return the manifests with numbers that the history gives, and print each of these.

    Nothing that a manifest has is changed.

    Raises:
        CommandError: no Brain answers.
    """
    from gangline.sdk.advice import BrainClient, BrainUnavailable, brain_token, find_brain
    from gangline.sdk.kinds import find_job_kind

    try:
        async with target.connect() as client:
            url = await find_brain(client, "")
            namespace = target.namespace_of(client)
            async with BrainClient(url, await brain_token(client, url)) as brain:
                return [
                    await _filled(brain, kind, manifest, namespace)
                    if (kind := find_job_kind(manifest["apiVersion"], manifest["kind"]))
                    else manifest
                    for manifest in manifests
                ]
    except BrainUnavailable as error:
        hint = "Nothing was created. Without --like-history the job is submitted as it is."
        raise CommandError(str(error), hint=hint, code=ExitCode.UNREACHABLE) from error


async def _filled(
    brain: "BrainClient", kind: "JobKind", manifest: Manifest, namespace: str
) -> Manifest:
    from jsonpatch import JsonPatch

    from gangline.api.brain.job_advice import AdviceItem
    from gangline.sdk.advice import advised_patch

    metadata = {"namespace": namespace, **manifest["metadata"]}
    answer = await brain.advise({**manifest, "metadata": metadata})
    name = manifest["metadata"].get("name", "")
    filled = manifest
    for item in msgspec.convert(answer["items"], list[AdviceItem]):
        operations = advised_patch(kind, filled, [item])
        # An operation that replaces would change what the user wrote.
        if not operations or any(operation["op"] != "add" for operation in operations):
            continue
        filled = JsonPatch(operations).apply(filled)
        print_status(f"{name}: {item.sentence}")
    if reason := answer.get("notCounted"):
        print_status(f"{name}: {reason}")
    if filled is manifest:
        print_status(f"{name}: the history gives nothing that the job leaves out.")
    return filled


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """Options of a submission."""

    output: str = "text"
    dry_run: bool = False
    schedule: bool = False
    """Print where and when the jobs would start, and create nothing."""
    wait: bool = False
    logs: bool = False
    check: bool = True
    """Check first that referenced objects exist."""
    like_history: bool = False
    """Fill in what the jobs leave out, from similar jobs of the past."""


def submit_manifests(
    manifests: Sequence[Manifest], target: ClusterTarget, sending: SubmitOptions
) -> None:
    """Create objects; with ``dry_run`` print them, with ``schedule`` when they would start.

    Raises:
        CommandError: an object is invalid, or with ``wait`` a job has failed.
    """
    if sending.like_history:
        manifests = asyncio.run(fill_from_history(manifests, target))
    for warning in check_manifests(manifests):
        print_status(f"Warning: {warning}")
    if sending.schedule:
        from gangline.cli.submit.schedule_check import print_schedule

        asyncio.run(print_schedule(manifests, target, sending.output))
        return
    if sending.dry_run:
        print_manifests(manifests, sending.output)
        return
    submitted: list[tuple[str, str]] = []
    try:
        asyncio.run(_submit(manifests, target, sending, submitted))
    except KeyboardInterrupt:
        for name, namespace in submitted:
            print_status(
                f"\nDetached from {name}: 'gangline logs -f {name} -n {namespace}' follows it."
            )
        raise


async def _submit(
    manifests: Sequence[Manifest],
    target: ClusterTarget,
    sending: SubmitOptions,
    submitted: list[tuple[str, str]],
) -> None:
    from gangline.cli.submit.preflight import find_missing
    from gangline.sdk.client import JobClient

    async with target.connect() as client:
        namespace = target.namespace_of(client)
        if sending.check and (lacking := await find_missing(client, manifests, namespace)):
            raise CommandError(
                "\n".join(lacking),
                hint="Nothing was created. With --no-check the job is submitted and stays pending.",
                code=ExitCode.NOT_FOUND,
            )
        jobs = JobClient(client)
        submitted += await create_objects(jobs, manifests, target.namespace, sending.output)
        for name, where in submitted:
            if sending.logs:
                await _follow(jobs, name, where)
            if sending.logs or sending.wait:
                await _wait(jobs, name, where, was_followed=sending.logs)
            else:
                job = f"{name} -n {where}"
                print_status(f"'gangline get {job}' shows it, 'gangline logs {job} -f' follows it.")


async def create_objects(
    jobs: "JobClient", manifests: Sequence[Manifest], namespace: str | None, output: str
) -> list[tuple[str, str]]:
    """Create objects, each job before the objects that it owns; return the jobs."""
    from gangline.sdk.kinds import find_job_kind

    owners: dict[str, Manifest] = {}
    submitted: list[tuple[str, str]] = []
    for manifest in sorted(manifests, key=lambda item: bool(_owner_name(item))):
        owner = owners.get(_owner_name(manifest))
        created = await _create_one(jobs, manifest, namespace, owner)
        _print_created(created, output)
        metadata = created["metadata"]
        if find_job_kind(created["apiVersion"], created["kind"]):
            owners[metadata["name"]] = created
            submitted.append((metadata["name"], metadata["namespace"]))
    return submitted


async def _create_one(
    jobs: "JobClient", manifest: Manifest, namespace: str | None, owner: Manifest | None
) -> Manifest:
    from gangline.kube.errors import ApiError
    from gangline.sdk.manifests import with_owner

    if owner is None:
        return await jobs.submit(manifest, namespace)
    try:
        return await jobs.submit(with_owner(manifest, owner), namespace)
    except ApiError:
        metadata = owner["metadata"]
        await jobs.delete(metadata["name"], metadata["namespace"])
        print_status(f"{metadata['name']} deleted: an object that it owns could not be created.")
        raise


def _owner_name(manifest: Manifest) -> str:
    annotations = manifest["metadata"].get("annotations") or {}
    return str(annotations.get(OWNER_ANNOTATION, ""))


def _print_created(created: Manifest, output: str) -> None:
    if output in {"json", "yaml"}:
        if created["kind"] == "Secret":
            created = {key: value for key, value in created.items() if key != "data"}
        click.echo(("---\n" if output == "yaml" else "") + serialize(created, output))
        return
    name = f"{created['kind'].lower()}/{created['metadata']['name']}"
    click.echo(name if output == "name" else f"{name} created")


async def _failure_error(jobs: "JobClient", job: "Job") -> CommandError:
    """Return the error of a failed job: its cause, what shows it, and what helps."""
    from gangline.kube.errors import ApiError
    from gangline.sdk.diagnosis import diagnose_job

    where = f"{job.name} -n {job.namespace}"
    cause, remedy = job.reason, ""
    with suppress(ApiError):
        root = (verdict := await diagnose_job(jobs, job.name, job.namespace)).root
        if root is not None:
            evidence = f"\n  {root.evidence}" if root.evidence else ""
            cause = f"{verdict.summary}{evidence}"
            remedy = f"{root.remedy}\n" if root.remedy else ""
    return CommandError(
        f"job {job.name} has failed: {cause}",
        hint=f"{remedy}'gangline diagnose {where}' looks for the cause, "
        f"'gangline logs {where}' prints the replicas' logs.",
        code=ExitCode.JOB_FAILED,
    )


async def follow_lines(
    jobs: "JobClient", job: "Job", writer: "LogLineWriter", options: "LogOptions | None" = None
) -> None:
    """Print the log of a job until its end, and beside it what the job does."""
    from gangline.cli.render.live_view import job_view
    from gangline.sdk.logs import ALL_LOGS, follow_batches

    with job_view(job.name, has_lines=True) as view:
        writer.view = view
        options = replace(options or ALL_LOGS, bars=view.is_live)
        reporting = background(JobObserver(jobs, view).run(job.name, job.namespace))
        async with reporting, follow_batches(jobs.client, job, options) as batches:
            async for batch in batches:
                writer.write(*batch)


class JobObserver:
    """Shows successive states of a job in a view, with its steps and restarts."""

    def __init__(
        self,
        jobs: "JobClient",
        view: "PlainView",
        steps: "Callable[[], Goodput | None] | None" = None,
    ) -> None:
        """Show jobs in this view; ``steps`` gives the steps of a job without a master."""
        self._jobs, self._view, self._steps = jobs, view, steps
        self._before: Job | None = None

    async def show(self, job: "Job") -> None:
        """Read what a view shows beside the state of the job, and show it."""
        from gangline.sdk.goodput import read_goodput
        from gangline.sdk.restarts import read_container_restart

        account = self._steps() if self._steps else await read_goodput(self._jobs.client, job)
        restart = account.last_restart if account else None
        if account is None and self._before is not None:
            restart = await read_container_restart(self._jobs.client, job, self._before)
        self._before = job
        self._view.show(job, account, restart)

    async def run(self, name: str, namespace: str) -> None:
        """Show a job until it has ended."""
        from gangline.kube.errors import KubeError, Unreachable
        from gangline.sdk.client import JobError

        while self._before is None or not self._before.state.finished:
            try:
                with suppress(Unreachable):  # the connection may come back
                    await self.show(await self._jobs.get(name, namespace))
            except (KubeError, JobError):
                return  # the follower of the log, or the wait for the end, reports it
            await asyncio.sleep(_PROGRESS_POLL_S)


async def _follow(jobs: "JobClient", name: str, namespace: str) -> None:
    from gangline.cli.render.log_lines import LogLineWriter

    print_status(f"Following {name}; Ctrl-C detaches, the job continues.")
    job = await jobs.get(name, namespace)
    await follow_lines(jobs, job, LogLineWriter(marked=job.desired > 1))


async def _wait(jobs: "JobClient", name: str, namespace: str, *, was_followed: bool) -> None:
    from gangline.cli.render.live_view import job_view
    from gangline.sdk.jobs import JobState

    if was_followed:
        job = await jobs.wait(name, namespace)
    else:
        print_status(f"Waiting for {name} to end; Ctrl-C stops waiting, not the job.")
        with job_view(name, has_lines=False) as view:
            async with background(JobObserver(jobs, view).run(name, namespace)):
                job = await jobs.wait(name, namespace)
    if job.state is JobState.FAILED:
        raise await _failure_error(jobs, job)
    print_status(f"Job {name} has succeeded.")
