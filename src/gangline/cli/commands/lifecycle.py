"""Commands that change jobs: ``suspend``, ``resume``, ``scale*``, ``restart``, ``clone``."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from gangline.cli.event_loop import run_async
from gangline.cli.params import completers
from gangline.cli.params.options import namespace_options, output_option, translate_job_errors
from gangline.cli.params.target import ClusterTarget
from gangline.cli.render.output import print_status

if TYPE_CHECKING:
    from gangline.sdk.job_editor import JobEditor

_JOBS = click.argument(
    "jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=completers.jobs
)


def _edit_job(target: ClusterTarget, act: "Callable[[JobEditor, str], Awaitable[str]]") -> None:
    """Connect to the cluster, run ``act``, and print its result."""

    async def acted() -> str:
        from gangline.sdk.client import JobClient  # noqa: PLC0415
        from gangline.sdk.job_editor import JobEditor  # noqa: PLC0415

        async with target.connect() as client:
            return await act(JobEditor(JobClient(client)), target.namespace_of(client))

    with translate_job_errors():
        click.echo(run_async(acted()))


@click.command("suspend")
@_JOBS
@namespace_options
def suspend_command(jobs: tuple[str, ...], target: ClusterTarget) -> None:
    """Delete the pods of jobs and keep the jobs suspended until 'resume'. Their resources become
    free.
    """
    _set_suspended(jobs, target, suspended=True)


@click.command("resume")
@_JOBS
@namespace_options
def resume_command(jobs: tuple[str, ...], target: ClusterTarget) -> None:
    """Resume suspended jobs, from their last checkpoint if they write checkpoints."""
    _set_suspended(jobs, target, suspended=False)


def _set_suspended(jobs: tuple[str, ...], target: ClusterTarget, *, suspended: bool) -> None:
    done = "suspended" if suspended else "resumed"

    for name in jobs:

        async def hold(changes: "JobEditor", namespace: str, name: str = name) -> str:
            changed = await changes.suspend(name, namespace, suspended=suspended)
            return f"{name} {done}" if changed else f"{name} was {done} already"

        _edit_job(target, hold)


@click.command("scale")
@click.argument("job", shell_complete=completers.jobs)
@click.argument("replicas", type=click.IntRange(0))
@click.option("--role", default="worker", show_default=True, help="Role to scale.")
@namespace_options
def scale_command(job: str, replicas: int, role: str, target: ClusterTarget) -> None:
    """Set the number of replicas of a role; the master of a PyTorch job is not counted."""
    _scale(job, target, lambda _: replicas, role)


def _scale(job: str, target: ClusterTarget, replicas: Callable[[int], int], role: str) -> None:
    async def scale(changes: "JobEditor", namespace: str) -> str:
        before, after = await changes.scale(job, namespace, replicas, role)
        return f"{job} scaled from {before} to {after} replicas of {role}"

    _edit_job(target, scale)


def _scale_by(name: str, text: str, sign: int) -> click.Command:
    @click.command(name, help=text)
    @click.argument("names", nargs=-1, metavar="[etjob] [JOB]")
    @click.option("--name", default="", help="Name of the job, as Arena takes it.")
    @click.option("--count", type=click.IntRange(1), default=1, show_default=True)
    @click.option("--role", default="worker", show_default=True, help="Which role.")
    @click.option("-t", "--timeout", default="60s", hidden=True)
    @click.option("--retry", type=int, default=0, hidden=True)
    @click.option("--script", default="", hidden=True)
    @click.option("-e", "--env", multiple=True, hidden=True)
    @namespace_options
    def command(
        names: tuple[str, ...],
        name: str,
        count: int,
        role: str,
        target: ClusterTarget,
        **ignored: object,
    ) -> None:
        # Arena writes the kind before the name.
        jobs = [each for each in names if each not in {"etjob", "et"}] or [name]
        if len(jobs) != 1 or not jobs[0]:
            raise click.UsageError("give the name of one job")
        if ignored["script"] or ignored["env"]:
            print_status(
                "Note: --script and --env have no effect: workers join and leave on their own."
            )
        _scale(jobs[0], target, lambda before: before + sign * count, role)

    return command


scalein_command = _scale_by("scalein", "Remove workers from a job.", -1)
scaleout_command = _scale_by("scaleout", "Add workers to a job.", 1)


@click.command("restart")
@click.argument("job", shell_complete=completers.jobs)
@namespace_options
def restart_command(job: str, target: ClusterTarget) -> None:
    """Start a job from its beginning: replace its pods, or submit it again if it has ended."""

    async def restart(changes: "JobEditor", namespace: str) -> str:
        await changes.restart(job, namespace)
        return f"{job} restarted"

    _edit_job(target, restart)


@click.command("clone")
@click.argument("job", shell_complete=completers.jobs)
@click.argument("name")
@click.option("--set", "fields", multiple=True, metavar="PATH=VALUE", help="Change a field.")
@click.option("--dry-run", is_flag=True, help="Print the objects, create nothing.")
@namespace_options
@output_option("text", "name", "yaml", "json")
def clone_command(
    job: str, name: str, fields: tuple[str, ...], dry_run: bool, target: ClusterTarget, output: str
) -> None:
    """Submit a copy of JOB named NAME, with its TensorBoard, code and configuration."""
    from gangline.cli.submit.manifests import apply_changes  # noqa: PLC0415
    from gangline.cli.submit.submission import SubmitOptions, submit_manifests  # noqa: PLC0415
    from gangline.sdk.client import JobClient  # noqa: PLC0415
    from gangline.sdk.job_editor import JobEditor  # noqa: PLC0415
    from gangline.sdk.manifests import Manifest  # noqa: PLC0415

    async def copied() -> list[Manifest]:
        async with target.connect() as client:
            changes = JobEditor(JobClient(client))
            return await changes.copy_manifests(job, name, target.namespace_of(client))

    with translate_job_errors():
        objects = run_async(copied())
    submit_manifests(
        apply_changes(objects, fields), target, SubmitOptions(output=output, dry_run=dry_run)
    )
