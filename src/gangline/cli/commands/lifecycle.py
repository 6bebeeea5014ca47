"""Commands that change jobs: ``suspend``, ``resume``, ``scale*``, ``restart``, ``clone``."""

import asyncio
from collections.abc import Callable

import click

from gangline.cli.params import completers
from gangline.cli.params.command import command
from gangline.cli.params.options import job_argument, namespace_options, output_option
from gangline.cli.params.session import ClusterSession, namespace_command
from gangline.cli.params.target import ClusterTarget
from gangline.cli.render.output import print_status

_JOBS = click.argument(
    "jobs", nargs=-1, required=True, metavar="JOB...", shell_complete=completers.jobs
)


@command("suspend", examples="gangline suspend digits resnet")
@_JOBS
@namespace_command
async def suspend_command(jobs: tuple[str, ...], cluster: ClusterSession) -> None:
    """Delete the pods of jobs and keep the jobs suspended until 'resume'. Their resources become
    free.
    """
    await _set_suspended(cluster, jobs, suspended=True)


@command("resume", examples="gangline resume digits resnet")
@_JOBS
@namespace_command
async def resume_command(jobs: tuple[str, ...], cluster: ClusterSession) -> None:
    """Resume suspended jobs, from their last checkpoint if they write checkpoints."""
    await _set_suspended(cluster, jobs, suspended=False)


async def _set_suspended(
    cluster: ClusterSession, names: tuple[str, ...], *, suspended: bool
) -> None:
    done = "suspended" if suspended else "resumed"
    for name in names:
        changed = await cluster.editor.suspend(name, cluster.namespace, suspended=suspended)
        click.echo(f"{name} {done}" if changed else f"{name} was {done} already")


@command(
    "scale",
    examples="""
        gangline scale digits 8
        gangline scale ctr 2 --role ps
    """,
)
@job_argument
@click.argument("replicas", type=click.IntRange(0))
@click.option("--role", default="worker", show_default=True, help="Role to scale.")
@namespace_command
async def scale_command(job: str, replicas: int, role: str, cluster: ClusterSession) -> None:
    """Set the number of replicas of a role. The master of a PyTorch job is not counted; the
    workers of a TrainJob are its nodes.
    """
    await _scale(cluster, job, lambda _: replicas, role)


async def _scale(
    cluster: ClusterSession, job: str, replicas: Callable[[int], int], role: str
) -> None:
    before, after = await cluster.editor.scale(job, cluster.namespace, replicas, role)
    click.echo(f"{job} scaled from {before} to {after} replicas of {role}")


def _scale_by(name: str, text: str, sign: int) -> click.Command:
    @command(name, help=text, examples=f"gangline {name} digits --count 2")
    @click.argument("names", nargs=-1, metavar="[etjob] [JOB]")
    @click.option("--name", default="", help="Name of the job, as Arena takes it.")
    @click.option("--count", type=click.IntRange(1), default=1, show_default=True)
    @click.option("--role", default="worker", show_default=True, help="Which role.")
    @click.option("-t", "--timeout", default="60s", hidden=True)
    @click.option("--retry", type=int, default=0, hidden=True)
    @click.option("--script", default="", hidden=True)
    @click.option("-e", "--env", multiple=True, hidden=True)
    @namespace_command
    async def scale_by(
        names: tuple[str, ...],
        name: str,
        count: int,
        role: str,
        cluster: ClusterSession,
        **ignored: object,
    ) -> None:
        # Arena writes the kind before the name.
        jobs = [word for word in names if word not in {"etjob", "et"}] or [name]
        if len(jobs) != 1 or not jobs[0]:
            raise click.UsageError("give the name of one job")
        if ignored["script"] or ignored["env"]:
            print_status(
                "Note: --script and --env have no effect: workers join and leave on their own."
            )
        await _scale(cluster, jobs[0], lambda before: before + sign * count, role)

    return scale_by


scalein_command = _scale_by("scalein", "Remove workers from a job.", -1)
scaleout_command = _scale_by("scaleout", "Add workers to a job.", 1)


@command("restart", examples="gangline restart digits")
@job_argument
@namespace_command
async def restart_command(job: str, cluster: ClusterSession) -> None:
    """Start a job from its beginning: replace its pods, or submit it again if it has ended."""
    await cluster.editor.restart(job, cluster.namespace)
    click.echo(f"{job} restarted")


@command(
    "clone",
    examples=r"""
        gangline clone digits digits-2
        gangline clone digits digits-3 \
          --set spec.pytorchReplicaSpecs.Worker.replicas=7
    """,
)
@job_argument
@click.argument("name")
@click.option("--set", "fields", multiple=True, metavar="PATH=VALUE", help="Change a field.")
@click.option("--dry-run", is_flag=True, help="Print the objects, create nothing.")
@namespace_options
@output_option("text", "name", "yaml", "json")
def clone_command(
    job: str, name: str, fields: tuple[str, ...], dry_run: bool, target: ClusterTarget, output: str
) -> None:
    """Submit a copy of JOB named NAME, with its TensorBoard, code and configuration."""
    from gangline.cli.submit.manifests import apply_changes
    from gangline.cli.submit.submission import SubmitOptions, submit_manifests
    from gangline.sdk.client import JobClient
    from gangline.sdk.job_editor import JobEditor
    from gangline.sdk.manifests import Manifest

    async def copied() -> list[Manifest]:
        async with target.connect() as client:
            changes = JobEditor(JobClient(client))
            return await changes.copy_manifests(job, name, target.namespace_of(client))

    changed = apply_changes(asyncio.run(copied()), fields)
    submit_manifests(changed, target, SubmitOptions(output=output, dry_run=dry_run))
