"""The flags of ``submit KIND`` in groups: common to all kinds, or of some kinds only."""

from typing import Any

import click

from gangline.cli.params import completers
from gangline.cli.params.command import OPTIONS, Option, section
from gangline.cli.submit.command import DRY_RUN_SCHEDULE

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

_DATA = section(
    "Data and environment",
    click.option("-e", "--env", **_PAIRS, help="Environment variable; may be repeated."),
    click.option(
        "--secret",
        multiple=True,
        metavar="VARIABLE=SECRET/KEY",
        help="Environment variable with a value from a Secret.",
    ),
    click.option(
        "-d",
        "--data",
        multiple=True,
        metavar="PVC:/DIR",
        shell_complete=completers.claims,
        help="Persistent volume claim to mount.",
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
        help="Local file that pods mount from a ConfigMap.",
    ),
)

_CODE_TITLE, _PLACEMENT_TITLE, _PODS_TITLE = "Code", "Queue and placement", "Pods"
_ENDS_TITLE = "Restarts and end"


def _code(default: str, *more: Option) -> Option:
    """Return the options for the code of a job, whose working folder has a default."""
    return section(
        _CODE_TITLE,
        _text(
            "--working-dir",
            show_default=f"{default}; on an embedded cluster of this machine the current folder",
            help="Working folder of the command; fetched code is in its subfolder code.",
        ),
        _text("--shell", default="sh", show_default=True, help="Shell that runs the command."),
        click.option(
            "--sync-mode",
            type=click.Choice(["git", "rsync", "local"]),
            help="Copy code to WORKING_DIR/code: from git, by rsync, or from this machine.",
        ),
        _text("--sync-source", help="URL of the repository, rsync source, or local folder."),
        *more,
    )


_PLACEMENT = (
    click.option("-l", "--label", **_PAIRS, help="Label of job and pods."),
    click.option("-a", "--annotation", **_PAIRS, help="Annotation of job and pods."),
    click.option("--selector", **_PAIRS, help="Label that the nodes must have."),
    click.option("--toleration", multiple=True, metavar="KEY", help="Taint to tolerate, or all."),
)

_QUEUE = _text("--queue", shell_complete=completers.queues, help="Queue of the job.")

_RDMA = _flag("--rdma", help="One RDMA device for each pod, and the right to lock memory.")

_PULL_SECRETS = click.option(
    "--image-pull-secret",
    "pull_secrets",
    multiple=True,
    metavar="SECRET",
    help="Secret for pulling the image.",
)

_SCHEDULING = section(
    _PLACEMENT_TITLE,
    _QUEUE,
    _text("-p", "--priority", shell_complete=completers.priority_classes, help="Priority class."),
    *_PLACEMENT,
    _text("--scheduler", help="Scheduler of the pods."),
    _flag("--gang", help="Label the pods as a group for other gang schedulers."),
)

_PODS = section(
    _PODS_TITLE,
    _text("--share-memory", default="2Gi", show_default=True, help="Size of /dev/shm; 0 for none."),
    _RDMA,
    _flag("--hostNetwork", "--host-network", "host_network", help="Use the network of the node."),
    _flag("--hostIPC", "--host-ipc", "host_ipc", help="Share memory with the node."),
    _flag("--hostPID", "--host-pid", "host_pid", help="See the processes of the node."),
    _PULL_SECRETS,
    click.option(
        "--image-pull-policy",
        "pull_policy",
        type=click.Choice(["Always", "IfNotPresent", "Never"]),
        default="Always",
        show_default=True,
        help="When to pull the image.",
    ),
)

_TENSORBOARD = section(
    "TensorBoard",
    _flag("--tensorboard", help="Start a TensorBoard for the job."),
    _text("--tensorboard-image", help="Image of TensorBoard."),
    _flag("--tensorboard-node-port", help="Expose TensorBoard on a port of the nodes."),
    _text("--logdir", default="/training_logs", show_default=True, help="Folder of event files."),
)

_LIMITS = (
    click.option(
        "--running-timeout", default="0", help="Fail the job after this time, such as 2h."
    ),
    click.option(
        "--ttl-after-finished", default="0", help="Delete the job this long after its end."
    ),
)

_MODEL = section(
    "Trained model",
    _text("--model-name", help="Name of the trained model; a label of job and pods."),
    _text("--model-source", help="Location of the trained model; an annotation of the job."),
)

_SUBMITTING = (
    _flag("--wait", help="Wait for the end; exit with 6 if the job fails."),
    _flag("--logs", "logs", help="Print the replicas' logs until the job ends."),
    _flag(
        "--dry-run",
        help="Print the objects, create nothing; with =schedule: where and when the job would "
        "start.",
    ),
    click.option(DRY_RUN_SCHEDULE, "schedule", is_flag=True, hidden=True),
    _flag("--no-check", help="Do not check that claims, secrets and queues exist."),
    _flag("--like-history", help="Fill in what is left out, from similar jobs of the past."),
)

RESOURCES = (
    _text("--cpu", help="CPU of each pod, such as 500m or 4."),
    _text("--memory", help="Memory of each pod, such as 8Gi."),
)


def workers_option(text: str = "Number of workers.") -> Option:
    return _count("--workers", 1, text, least=1)


def ps_option() -> Option:
    return _count("--ps", 0, "Parameter servers.")


def clean_policy_option(default: str) -> Option:
    return click.option(
        "--clean-task-policy",
        type=click.Choice(["None", "Running", "All"]),
        default=default,
        show_default=True,
        help="Which pods to delete when the job ends.",
    )


def _tf_role(role: str) -> tuple[Option, ...]:
    name = f"--{role}"
    return (
        _text(f"{name}-cpu", help=f"CPU request of each {role}."),
        _text(f"{name}-memory", help=f"Memory request of each {role}."),
        _text(f"{name}-cpu-limit", help=f"CPU limit of each {role}; default: its request."),
        _text(f"{name}-memory-limit", help=f"Memory limit of each {role}; default: its request."),
        click.option(f"{name}-selector", **_PAIRS, help=f"Label of the nodes of each {role}."),
    )


def _tf_affinity(role: str) -> tuple[Option, ...]:
    return (
        click.option(
            f"--{role}-affinity-policy",
            type=click.Choice(["none", "spread", "binpack"]),
            default="none",
            show_default=True,
            help=f"Spread the {role} pods over nodes, or pack them.",
        ),
        click.option(
            f"--{role}-affinity-constraint",
            type=click.Choice(["preferred", "required"]),
            default="preferred",
            show_default=True,
            help="Strictness of the affinity policy.",
        ),
    )


TENSORFLOW = (
    ps_option(),
    _flag("--chief", help="Add a chief."),
    _flag("--evaluator", help="Add an evaluator."),
    section(
        "Roles",
        _text("--worker-image", help="Image of workers, chief and evaluator; else --image."),
        _text("--ps-image", help="Image of parameter servers; else --image."),
        _count("--ps-gpus", 0, "GPUs of each parameter server."),
        *(
            _count(f"--{role}-port", 0, f"Port of each {role}; 2222 if 0.")
            for role in ("ps", "worker", "chief")
        ),
        *(option for role in ("worker", "ps", "chief", "evaluator") for option in _tf_role(role)),
        *_tf_affinity("worker"),
        *_tf_affinity("ps"),
        _text("--role-sequence", help="Order of the roles, such as w,p,c,e; an annotation."),
        click.option(
            "--success-policy",
            type=click.Choice(["ChiefWorker", "AllWorkers"]),
            default="ChiefWorker",
            show_default=True,
            help="Replicas that must succeed.",
        ),
        click.option(
            "--starting-timeout",
            default="0",
            help="Time limit for placing the gang, such as 30m.",
        ),
    ),
)

MPI = (
    _flag("--gputopology", help="Use the network of the nodes."),
    _flag("--mounts-on-launcher", help="Mount the data in the launcher too."),
    _count("--slots-per-worker", 0, "Processes on a worker; 0: one for each GPU, at least 1."),
)

DEEPSPEED = (
    click.option("--launcher-selector", **_PAIRS, help="Label that the launcher's node must have."),
    click.option("--launcher-annotation", **_PAIRS, help="Annotation of the launcher."),
    click.option("--worker-annotation", **_PAIRS, help="Annotation of the workers."),
)

ELASTIC = (
    ps_option(),
    _count("--min-workers", 1, "Minimum number of workers.", least=1),
    _count("--max-workers", 1000, "Maximum number of workers.", least=1),
    click.option(
        "--strategy",
        type=click.Choice(["AllreduceStrategy", "ParameterServerStrategy", "Local"]),
        default="AllreduceStrategy",
        show_default=True,
        help="How the workers combine gradients.",
    ),
)

_RUNTIME = (
    _text(
        "--runtime",
        default="torch-distributed",
        show_default=True,
        help="Training runtime that the job completes.",
    ),
    click.option(
        "--runtime-kind",
        type=click.Choice(["ClusterTrainingRuntime", "TrainingRuntime"]),
        default="ClusterTrainingRuntime",
        show_default=True,
        help="Runtime of all namespaces, or of the job's.",
    ),
    click.option(
        "--runtime-job",
        "runtime_jobs",
        multiple=True,
        metavar="NAME",
        help="Replicated job of the runtime whose pods get volumes, labels and placement; may be "
        "repeated. Default: those of a shipped runtime that train, else node.",
    ),
    click.option(
        "--workers",
        "--nodes",
        "workers",
        type=click.IntRange(1),
        help="Number of nodes; default: the runtime's.",
    ),
    click.option(
        "--min-nodes", type=click.IntRange(1), help="Fewest nodes of an elastic job; default: 1."
    ),
    click.option(
        "--max-nodes",
        type=click.IntRange(1),
        help="Most nodes: their number may change while the job runs.",
    ),
    click.option(
        "--nproc-per-node",
        type=click.IntRange(1),
        help="Processes of each node; default: the runtime's.",
    ),
    _text("--dataset-uri", help="Data that the runtime fetches, such as hf://OWNER/NAME."),
    _text("--model-uri", help="Model that the runtime fetches, such as s3://BUCKET/PATH."),
    _text("--initializer-secret", help="Secret with the variables that fetch data and model."),
)

TRAIN = (
    *_IDENTITY,
    *_RUNTIME,
    *RESOURCES,
    *_SUBMITTING,
    _code("the runtime's, /root with --sync-mode"),
    _DATA,
    section(_PLACEMENT_TITLE, _QUEUE, *_PLACEMENT),
    section(
        _PODS_TITLE,
        _text("--share-memory", help="Size of /dev/shm; default: the runtime's."),
        _RDMA,
        _PULL_SECRETS,
    ),
    section(_ENDS_TITLE, *_LIMITS),
    _TENSORBOARD,
    _MODEL,
)
"""Only what a TrainJob may change in its runtime."""

PYTORCH = (_text("--nproc-per-node", help="Processes in each pod: auto, cpu, gpu or N."),)


_OF_KIND: dict[str, tuple[Option, ...]] = {
    "pytorch": (
        workers_option("Number of pods: one master, the rest workers."),
        *RESOURCES,
        *PYTORCH,
    ),
    "tf": (workers_option(), *TENSORFLOW),
    "mpi": (workers_option("Number of pods that run processes."), *RESOURCES, *MPI),
    "deepspeed": (
        workers_option("Number of pods that run processes."),
        *RESOURCES,
        *DEEPSPEED,
    ),
    "mindspore": (workers_option(), *RESOURCES, ps_option()),
    "paddle": (workers_option(), *RESOURCES, ps_option()),
    "jax": (workers_option(), *RESOURCES),
    "xgboost": (workers_option("Number of pods: one master, the rest workers."), *RESOURCES),
    "elastic": (workers_option("Initial number of workers."), *RESOURCES, *ELASTIC),
}


def kind_options(word: str, clean: str) -> Option:
    """Return the decorator that adds the options of a kind.

    Args:
        word: the name of the ``submit`` subcommand.
        clean: the default of ``--clean-task-policy``; empty: the kind has no such policy.
    """
    if word == "train":
        return section(OPTIONS, *TRAIN)
    policy = (_count("--retry", 0, "Number of restarts."), *_LIMITS, clean_policy_option(clean))
    return section(
        OPTIONS,
        *_IDENTITY,
        *_OF_KIND[word],
        *_SUBMITTING,
        _code("/root", _text("--sync-image", help="Image that fetches the code.")),
        _DATA,
        _SCHEDULING,
        _PODS,
        section(_ENDS_TITLE, *policy),
        _TENSORBOARD,
        _MODEL,
    )


_EXAMPLES = {
    "pytorch": '--workers 4 --gpus 8 \\\n  --image pytorch/pytorch:2.7.1 "torchrun train.py"',
    "tf": '--workers 2 --ps 1 \\\n  --image tensorflow/tensorflow:2.19.0 "python train.py"',
    "mpi": '--workers 4 --gpus 8 \\\n  --image horovod/horovod:0.28.1 "mpirun python train.py"',
    "deepspeed": "--workers 4 --gpus 8 \\\n"
    '  --image deepspeed/deepspeed:latest "deepspeed train.py"',
    "mindspore": '--workers 4 \\\n  --image mindspore/mindspore-cpu:2.6.0 "python train.py"',
    "paddle": '--workers 4 \\\n  --image paddlepaddle/paddle:3.1.0 "python train.py"',
    "jax": '--workers 4 --gpus 8 \\\n  --image nvcr.io/nvidia/jax:25.04-py3 "python train.py"',
    "xgboost": '--workers 4 \\\n  --image example.com/xgboost:3.0 "python train.py"',
    "elastic": "--min-workers 2 --max-workers 8 \\\n"
    '  --image pytorch/pytorch:2.7.1 "gangline run train.py"',
    "train": '--workers 4 --nproc-per-node 8 \\\n  "torchrun train.py"',
}
"""The first example of each kind behind ``--name digits``."""


def kind_examples(word: str) -> str:
    """Return how the subcommand of a kind is used: a job, then with what clusters offer."""
    start, usual = f"gangline submit {word} --name digits", _EXAMPLES[word]
    options, _, command = usual.partition(" \\\n")
    return "\n".join(
        (
            f"{start} {usual}",
            f"{start} {options} \\\n  --data datasets:/data -e LR=0.1 --queue research --wait \\\n"
            f"{command}",
            "# where and when would it start?",
            f"{start} {options} \\\n  --dry-run=schedule \\\n{command}",
        )
    )
