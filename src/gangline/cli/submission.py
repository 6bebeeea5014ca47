"""What every way to submit has in common: check, show or create, and wait for the end."""

from collections.abc import Sequence
from typing import Any

import click

from gangline.cli.errors import CommandError
from gangline.cli.event_loop import run
from gangline.cli.exit_codes import ExitCode
from gangline.cli.manifests import advice, check
from gangline.cli.options import Target, job_errors
from gangline.cli.output import say, structured


def submit(
    manifests: Sequence[dict[str, Any]], target: Target, *, output: str, dry_run: bool, wait: bool
) -> None:
    """Create objects, or with ``dry_run`` print what would be created.

    Raises:
        CommandError: an object has mistakes, or with ``wait`` a job has failed.
    """
    check(manifests)
    for warning in advice(manifests):
        say(f"Warning: {warning}")
    if dry_run:
        form = "json" if output == "json" else "yaml"
        texts = [structured(manifest, form) for manifest in manifests]
        click.echo("\n---\n".join(texts) if form == "yaml" else "\n".join(texts))
        return
    with job_errors():
        run(_create(manifests, target, output=output, wait=wait))


async def _create(
    manifests: Sequence[dict[str, Any]], target: Target, *, output: str, wait: bool
) -> None:
    from gangline.sdk.client import JobClient  # noqa: PLC0415
    from gangline.sdk.kinds import JOB_KINDS  # noqa: PLC0415

    kinds = {kind.resource.kind for kind in JOB_KINDS}
    async with target.connect() as client:
        jobs = JobClient(client)
        submitted: list[tuple[str, str]] = []
        for manifest in manifests:
            created = await jobs.submit(manifest, target.namespace)
            _tell_created(created, output)
            metadata = created["metadata"]
            if created["kind"] in kinds:
                submitted.append((metadata["name"], metadata["namespace"]))
        if not wait:
            for name, namespace in submitted:
                say(f"'gangline logs -f {name} -n {namespace}' follows it.")
            return
        for name, namespace in submitted:
            await _wait(jobs, name, namespace)


def _tell_created(created: dict[str, Any], output: str) -> None:
    if output in {"json", "yaml"}:
        click.echo(structured(created, output))
        return
    name = f"{created['kind'].lower()}/{created['metadata']['name']}"
    click.echo(name if output == "name" else f"{name} created")


async def _wait(jobs: Any, name: str, namespace: str) -> None:
    from gangline.sdk.jobs import State  # noqa: PLC0415

    say(f"Waiting for {name} to end; Ctrl-C stops waiting, not the job.")
    job = await jobs.wait(name, namespace)
    if job.state is State.FAILED:
        raise CommandError(
            f"job {name} has failed: {job.reason}",
            hint=f"'gangline logs {name} -n {namespace}' prints what its replicas wrote.",
            code=ExitCode.JOB_FAILED,
        )
    say(f"Job {name} has succeeded.")
