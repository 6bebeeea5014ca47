"""``submit pytorch``: a PyTorchJob from Arena's flags."""

from typing import Any

import click

from gangline.cli import job_flags
from gangline.cli.errors import CommandError
from gangline.cli.exit_codes import ExitCode
from gangline.cli.options import Target, namespace_options, output_option

_MULTIPLE: dict[str, Any] = {"multiple": True, "metavar": "KEY=VALUE"}


@click.command("pytorch", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--name", required=True, help="Name of the job.")
@click.option("--image", default="", help="Image that the replicas run.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Pods in all: one master, the rest workers.",
)
@click.option("--gpus", type=click.IntRange(0), default=0, help="GPUs of each pod.")
@click.option("--device", **_MULTIPLE, help="Another extended resource of each pod.")
@click.option("--cpu", default="", help="CPU of each pod, such as 500m or 4.")
@click.option("--memory", default="", help="Memory of each pod, such as 8Gi.")
@click.option(
    "--share-memory", default="2Gi", show_default=True, help="Size of /dev/shm; 0 for none."
)
@click.option("-e", "--env", **_MULTIPLE, help="Environment variable; may be repeated.")
@click.option("-d", "--data", multiple=True, metavar="PVC:/DIR", help="Claim to mount at a folder.")
@click.option(
    "--data-dir", multiple=True, metavar="/DIR", help="Folder of the node, or /HOST:/CONTAINER."
)
@click.option("--working-dir", default="", help="Folder that the command runs in.")
@click.option("--shell", default="sh", show_default=True, help="Shell that runs the command.")
@click.option("-l", "--label", **_MULTIPLE, help="Label of job and pods.")
@click.option("-a", "--annotation", **_MULTIPLE, help="Annotation of job and pods.")
@click.option("--selector", **_MULTIPLE, help="Label that the nodes must have.")
@click.option("--toleration", multiple=True, metavar="KEY", help="Taint to put up with; or all.")
@click.option("-p", "--priority", default="", help="Priority class.")
@click.option("--queue", default="", help="Queue that pays for the job.")
@click.option("--scheduler", default="", help="Scheduler of the pods.")
@click.option("--image-pull-secret", "pull_secrets", multiple=True, metavar="SECRET")
@click.option(
    "--image-pull-policy",
    "pull_policy",
    type=click.Choice(["Always", "IfNotPresent", "Never"]),
    default="IfNotPresent",
    show_default=True,
)
@click.option(
    "--retry", type=click.IntRange(0), default=0, show_default=True, help="Restarts allowed."
)
@click.option(
    "--clean-task-policy",
    type=click.Choice(["None", "Running", "All"]),
    default="Running",
    show_default=True,
    help="Which pods go when the job ends.",
)
@click.option("--running-timeout", default="0", help="Fail the job after so long, such as 2h.")
@click.option("--ttl-after-finished", default="0", help="Delete the job so long after its end.")
@click.option("--nproc-per-node", default="", help="Processes in each pod: auto, cpu, gpu or N.")
@click.option("--dry-run", is_flag=True, help="Print what would be created, create nothing.")
@click.option("--wait", is_flag=True, help="Wait for the end; exit with 6 if the job fails.")
@namespace_options
@output_option("text", "name", "yaml", "json")
def pytorch_command(
    target: Target,
    output: str,
    dry_run: bool,
    wait: bool,
    command: tuple[str, ...],
    **flags: Any,
) -> None:
    """Start a PyTorch job that runs COMMAND in each of its pods.

    Options come before the command; its words are joined and run by the shell.
    """
    from gangline.cli.pytorch_manifest import pytorch_job  # noqa: PLC0415
    from gangline.cli.submission import submit  # noqa: PLC0415

    if not command:
        raise _missing("what is to run? Put the command last", '"python train.py"')
    _refuse_late_options(command)
    if not flags["image"]:
        raise _missing("--image must be given", "--image pytorch/pytorch:2.7.1")
    job = pytorch_job(_read(" ".join(command), flags))
    submit([job], target, output=output, dry_run=dry_run, wait=wait)


def _refuse_late_options(command: tuple[str, ...]) -> None:
    """Catch ``"python train.py" --wait``, where a quoted command would swallow our option."""
    ours = {name for option in pytorch_command.params for name in option.opts}
    late = [word for word in command[1:] if word.partition("=")[0] in ours]
    if late and len(command[0].split()) > 1:
        raise CommandError(
            f"{late[0]} stands behind the command, which would get it instead of gangline",
            hint="Put it before the command, or inside the command's quotes.",
            code=ExitCode.USAGE,
        )


def _missing(message: str, example: str) -> CommandError:
    return CommandError(message, hint=f"For example: {example}", code=ExitCode.USAGE)


def _read(command: str, given: dict[str, Any]) -> Any:
    """Read the flags that have a form of their own; the rest is taken as it is."""
    from gangline.cli.pytorch_manifest import PyTorchFlags  # noqa: PLC0415

    amounts = {name: given.pop(name) for name in ("cpu", "memory")}
    for name, amount in amounts.items():
        if amount:
            job_flags.quantity(f"--{name}", amount)
    shared = given.pop("share_memory")
    durations: dict[str, Any] = {
        f"{name}_s": job_flags.seconds(f"--{name.replace('_', '-')}", given.pop(name))
        for name in ("running_timeout", "ttl_after_finished")
    }
    return PyTorchFlags(
        command=command,
        share_memory="" if shared in {"", "0"} else job_flags.quantity("--share-memory", shared),
        devices=job_flags.devices(given.pop("device")),
        environment=job_flags.environment(given.pop("env")),
        mounts=[
            *job_flags.claims(given.pop("data")),
            *job_flags.host_folders(given.pop("data_dir")),
        ],
        labels=job_flags.pairs("--label", given.pop("label")),
        annotations=job_flags.pairs("--annotation", given.pop("annotation")),
        selector=job_flags.pairs("--selector", given.pop("selector")),
        tolerations=job_flags.tolerations(given.pop("toleration")),
        **amounts,
        **durations,
        **given,
    )
