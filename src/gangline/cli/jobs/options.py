"""The flags of ``submit KIND``, in groups: what every kind takes, and what only some do."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from gangline.cli import completing

F = TypeVar("F", bound=Callable[..., Any])
Option = Callable[[Any], Any]

_PAIRS: dict[str, Any] = {"multiple": True, "metavar": "KEY=VALUE"}


def _text(*names: str, **more: Any) -> Option:
    return click.option(*names, **{"default": "", **more})


def _flag(*names: str, **more: Any) -> Option:
    return click.option(*names, is_flag=True, **more)


def _count(name: str, default: int, text: str, *, least: int = 0) -> Option:
    return click.option(
        name, type=click.IntRange(least), default=default, show_default=True, help=text
    )


_IDENTITY = (
    click.option("--name", required=True, help="Name of the job."),
    _text("--image", help="Image that the replicas run."),
    _count("--gpus", 0, "GPUs of each worker."),
    click.option("--device", **_PAIRS, help="Another extended resource, VENDOR/RESOURCE=N."),
)

_RUNNING = (
    _text("--share-memory", default="2Gi", show_default=True, help="Size of /dev/shm; 0 for none."),
    click.option("-e", "--env", **_PAIRS, help="Environment variable; may be repeated."),
    click.option(
        "--secret",
        multiple=True,
        metavar="VARIABLE=SECRET/KEY",
        help="Environment variable whose value a Secret holds.",
    ),
    click.option(
        "-d",
        "--data",
        multiple=True,
        metavar="PVC:/DIR",
        shell_complete=completing.claims,
        help="Claim to mount at a folder.",
    ),
    click.option(
        "--data-dir",
        multiple=True,
        metavar="/DIR",
        help="Folder of the node, or /HOST:/CONTAINER.",
    ),
    click.option(
        "--config-file",
        multiple=True,
        metavar="FILE[:/DIR/NAME]",
        help="File of this machine that the pods get through a ConfigMap.",
    ),
    _text(
        "--working-dir",
        default="/root",
        show_default=True,
        help="Folder that the command runs in; code lands in its folder code.",
    ),
    _text("--shell", default="sh", show_default=True, help="Shell that runs the command."),
)

_PLACING = (
    click.option("-l", "--label", **_PAIRS, help="Label of job and pods."),
    click.option("-a", "--annotation", **_PAIRS, help="Annotation of job and pods."),
    click.option("--selector", **_PAIRS, help="Label that the nodes must have."),
    click.option(
        "--toleration", multiple=True, metavar="KEY", help="Taint to put up with; or all."
    ),
    _text("-p", "--priority", shell_complete=completing.priority_classes, help="Priority class."),
    _text("--queue", shell_complete=completing.queues, help="Queue that pays for the job."),
    _text("--scheduler", help="Scheduler of the pods."),
    _flag("--gang", help="Mark the pods as a group for other gang schedulers; ours always does."),
    _flag("--rdma", help="One RDMA device for each pod, and the right to pin memory."),
    _flag("--hostNetwork", "--host-network", "host_network", help="Use the network of the node."),
    _flag("--hostIPC", "--host-ipc", "host_ipc", help="Share memory with the node."),
    _flag("--hostPID", "--host-pid", "host_pid", help="See the processes of the node."),
    click.option(
        "--image-pull-secret",
        "pull_secrets",
        multiple=True,
        metavar="SECRET",
        help="Secret to pull the image with.",
    ),
    click.option(
        "--image-pull-policy",
        "pull_policy",
        type=click.Choice(["Always", "IfNotPresent", "Never"]),
        default="Always",
        show_default=True,
        help="When to pull the image.",
    ),
)

_CODE = (
    click.option(
        "--sync-mode",
        type=click.Choice(["git", "rsync", "local"]),
        help="Bring code to WORKING_DIR/code: from git, by rsync, or from this machine.",
    ),
    _text("--sync-source", help="Address of the repository, rsync source, or local folder."),
    _text("--sync-image", help="Image that fetches the code."),
)

_TENSORBOARD = (
    _flag("--tensorboard", help="Start a TensorBoard for the job."),
    _text("--tensorboard-image", help="Image of TensorBoard."),
    _flag("--tensorboard-node-port", help="Open TensorBoard on a port of the nodes."),
    _text("--logdir", default="/training_logs", show_default=True, help="Folder of its events."),
)

_POLICY = (
    _count("--retry", 0, "Restarts allowed."),
    click.option("--running-timeout", default="0", help="Fail the job after so long, such as 2h."),
    click.option("--ttl-after-finished", default="0", help="Delete the job so long after its end."),
)

_MODEL = (
    _text("--model-name", help="Name of the model that the job makes; noted on job and pods."),
    _text("--model-source", help="Where the model will lie; noted on the job."),
)

_SENDING = (
    _flag("--dry-run", help="Print what would be created, create nothing."),
    _flag("--no-check", help="Do not look first whether claims, secrets, queues exist."),
    _flag("--wait", help="Wait for the end; exit with 6 if the job fails."),
    _flag("--logs", "logs", help="Print what the replicas write until the job ends."),
)

AMOUNTS = (
    _text("--cpu", help="CPU of each pod, such as 500m or 4."),
    _text("--memory", help="Memory of each pod, such as 8Gi."),
)


def workers(text: str = "Pods that train.") -> Option:
    """``--workers``."""
    return _count("--workers", 1, text, least=1)


def servers() -> Option:
    """``--ps``."""
    return _count("--ps", 0, "Parameter servers.")


def clean_policy(default: str) -> Option:
    """``--clean-task-policy``."""
    return click.option(
        "--clean-task-policy",
        type=click.Choice(["None", "Running", "All"]),
        default=default,
        show_default=True,
        help="Which pods go when the job ends.",
    )


COMMON = (*_IDENTITY, *_RUNNING, *_PLACING, *_CODE, *_TENSORBOARD, *_POLICY, *_MODEL, *_SENDING)


def _tf_role(role: str) -> tuple[Option, ...]:
    name = f"--{role}"
    return (
        _text(f"{name}-cpu", help=f"CPU asked for each {role}."),
        _text(f"{name}-memory", help=f"Memory asked for each {role}."),
        _text(f"{name}-cpu-limit", help=f"Most CPU of each {role}; as asked for if not given."),
        _text(f"{name}-memory-limit", help=f"Most memory of each {role}; likewise."),
        click.option(f"{name}-selector", **_PAIRS, help=f"Label of the nodes of each {role}."),
    )


def _tf_near(role: str) -> tuple[Option, ...]:
    return (
        click.option(
            f"--{role}-affinity-policy",
            type=click.Choice(["none", "spread", "binpack"]),
            default="none",
            show_default=True,
            help=f"Put each {role} on nodes apart, or together.",
        ),
        click.option(
            f"--{role}-affinity-constraint",
            type=click.Choice(["preferred", "required"]),
            default="preferred",
            show_default=True,
            help="How strictly.",
        ),
    )


TENSORFLOW = (
    _text("--worker-image", help="Image of workers, chief and evaluator; else --image."),
    _text("--ps-image", help="Image of parameter servers; else --image."),
    servers(),
    _count("--ps-gpus", 0, "GPUs of each parameter server."),
    *(
        _count(f"--{role}-port", 0, f"Port of each {role}; 2222 if 0.")
        for role in ("ps", "worker", "chief")
    ),
    *(option for role in ("worker", "ps", "chief", "evaluator") for option in _tf_role(role)),
    _flag("--chief", help="Add a chief."),
    _flag("--evaluator", help="Add an evaluator."),
    *_tf_near("worker"),
    *_tf_near("ps"),
    _text("--role-sequence", help="Order of the roles, such as w,p,c,e; noted on the job."),
    click.option(
        "--success-policy",
        type=click.Choice(["ChiefWorker", "AllWorkers"]),
        default="ChiefWorker",
        show_default=True,
        help="Whose success is the job's.",
    ),
    click.option(
        "--starting-timeout",
        default="0",
        help="Time in which the gang must be placed, such as 30m.",
    ),
)

MPI = (
    _flag("--gputopology", help="Keep the pods on the network of their nodes."),
    _flag("--mounts-on-launcher", help="Mount the data in the launcher as well."),
    _count("--slots-per-worker", 0, "Processes that fit on a worker; its GPUs, or 1, if 0."),
)

ELASTIC = (
    servers(),
    _count("--min-workers", 1, "Fewest workers that train.", least=1),
    _count("--max-workers", 1000, "Most workers.", least=1),
    click.option(
        "--strategy",
        type=click.Choice(["AllreduceStrategy", "ParameterServerStrategy", "Local"]),
        default="AllreduceStrategy",
        show_default=True,
        help="How the workers share what they learn.",
    ),
)

PYTORCH = (_text("--nproc-per-node", help="Processes in each pod: auto, cpu, gpu or N."),)


_OF_KIND: dict[str, tuple[Option, ...]] = {
    "pytorch": (workers("Pods in all: one master, the rest workers."), *AMOUNTS, *PYTORCH),
    "tf": (workers(), *TENSORFLOW),
    "mpi": (workers("Pods that processes are started in."), *AMOUNTS, *MPI),
    "mindspore": (workers(), *AMOUNTS, servers()),
    "paddle": (workers(), *AMOUNTS, servers()),
    "jax": (workers(), *AMOUNTS),
    "elastic": (workers("Workers to begin with."), *AMOUNTS, *ELASTIC),
}


def of_kind(word: str, clean: str) -> tuple[Option, ...]:
    """The options of a kind, as it is called behind ``submit``.

    Args:
        word: the kind.
        clean: which of its pods go when a job ends, where it is not said.
    """
    return (*COMMON, *_OF_KIND[word], clean_policy(clean))


def with_options(command: F, options: Iterable[Option]) -> F:
    """Add options to a command's function, shown in this order."""
    for option in reversed(tuple(options)):
        command = option(command)
    return command
