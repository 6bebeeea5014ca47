"""``gangline plan``: what a training needs, and the layouts that fit, before anything runs.

``-o job`` prints the PyTorchJob of the plan.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click
from click.core import ParameterSource

from gangline.api.figures import format_scaled
from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.command import Command, command, section
from gangline.cli.planning.calibrate import calibrate_command
from gangline.cli.planning.model_flags import (
    AMOUNT,
    COUNT,
    DURATION,
    SECONDS,
    ModelFlags,
    check_model_flags,
    model_options,
    names_model,
    read_model,
)
from gangline.cli.render.output import serialize, without_rounding_errors

if TYPE_CHECKING:
    from gangline.cli.planning.job_request import JobSource
    from gangline.sizing.calibration import Calibration
    from gangline.sizing.curve import CurvePoint
    from gangline.sizing.goals import JobRequest, PlannedTraining
    from gangline.sizing.hardware import DeviceModel
    from gangline.sizing.plan import Plan, PlanRequest
    from gangline.sizing.traced import TracedModel
    from gangline.sizing.transformer import TransformerModel


def planned_job(plan: "Plan", name: str, image: str, command: tuple[str, ...]) -> str:
    """Return the manifest, with the layout that it is made for as a comment."""
    from gangline.api.validation.validate import validate_manifest
    from gangline.sizing.goals import (
        ANNOTATION,
        has_known_loading,
        host_memory_bytes,
        node_cpus,
        write_record,
    )

    best = plan.choices[0]
    request, layout = plan.request, best.candidate.layout
    per_node, nodes = plan.node_devices, plan.nodes
    host = plan.checkpoints.host_bytes_per_node
    container: dict[str, Any] = {
        "name": "pytorch",
        "image": image,
        "command": ["torchrun", *(command or ("train.py",))],
        "resources": {
            "limits": {
                "nvidia.com/gpu": per_node,
                "memory": f"{_gibibytes(host_memory_bytes(plan))}Gi",
            }
        },
    }
    if has_known_loading(plan):
        container["resources"]["requests"] = {"cpu": node_cpus(plan)}
    template = {"spec": {"containers": [container]}}
    replica = {"restartPolicy": "OnFailure", "template": template}
    specs = {"Master": {"replicas": 1, **replica}}
    if nodes > 1:
        specs["Worker"] = {"replicas": nodes - 1, **replica}
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": name,
            "annotations": {
                "gangline.dev/shared-memory": f"{_gibibytes(host)}Gi",
                ANNOTATION: write_record(plan),
            },
        },
        "spec": {"nprocPerNode": str(per_node), "pytorchReplicaSpecs": specs},
    }
    if errors := validate_manifest(manifest):
        raise click.UsageError(f"the job would be refused: {'; '.join(map(str, errors))}")
    notes = (
        f"{layout.title}: micro-batch {layout.micro_batch}, global batch {layout.global_batch}, "
        f"recompute {layout.recompute_title}, {request.precision.value} precision",
        f"{best.candidate.memory.total / 1e9:.0f} GB of {request.device.name}, "
        f"{format_scaled(best.step_s.middle, 's')} a step",
    )
    return "".join(f"# {note}\n" for note in notes) + serialize(manifest, "yaml").rstrip("\n")


def _gibibytes(size: float) -> int:
    return max(-(-int(size) // 2**30), 1)


PRECISIONS = ("mixed", "mixed-fp32-gradients", "autocast", "bf16", "fp8", "fp32")
NOTHING_FITS = 3
"""Exit status when no layout fits, a goal is missed, or a checked job requests too little."""
DEFAULT_GPU = "H100"
NO_CALIBRATION = "off"


@dataclass(frozen=True, slots=True)
class GpuCount:
    """A number of GPUs, and their kind if it is given with it."""

    count: int
    kind: str = ""


MOST_GPUS = 1_000_000
"""The largest number of GPUs that a plan is made for: the search of larger ones takes minutes."""


class _GpuCount(click.ParamType[GpuCount]):
    """A number such as 64, or a number and a kind such as 64xA100-40G."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> GpuCount:
        text = str(value).strip()
        count, _, kind = text.replace("*", "x", 1).partition("x")
        if not (count.isascii() and count.isdigit() and int(count)):
            self.fail(f"{text!r} is not a number of GPUs such as 64 or 64xA100-40G", param, ctx)
        if text != count and not kind.strip():
            self.fail(f"{text!r} names no kind of GPU after the x", param, ctx)
        return GpuCount(int(count), kind.strip())


class PlanFlags(ModelFlags):
    """Options of the command."""

    samples: float | None
    epochs: float | None
    tokens: float | None
    batch: int | None
    gpu: str | None
    gpus: "GpuCount | None"
    nodes: int | None
    node_gpus: int | None
    peak: float | None
    memory: float | None
    network: float | None
    causal: bool
    sample_cpu: float | None
    efficiency: float | None
    calibration: str | None
    precision: str | None
    optimizer: str | None
    adapter: str | None
    adapter_rank: int | None
    offload: bool
    compiled: bool
    fused_loss: bool
    layout: str | None
    runs: str
    price: float | None
    deadline: float | None
    budget: float | None
    like: str | None
    check: str | None
    file: str | None
    namespace: str | None
    kubeconfig: str | None
    context: str | None
    output: str
    html: Path | None
    name: str
    image: str
    estimator: str


class PlanCommand(Command):
    """``plan``, whose first word may be ``calibrate``."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Hand over to the calibration if its name comes first."""
        if args[:1] == [calibrate_command.name]:
            name = f"{info_name} {calibrate_command.name}"
            return calibrate_command.make_context(name, args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def subcommands(self, ctx: click.Context) -> Iterator[click.Context]:
        """Yield a context of the calibration."""
        name = f"{ctx.info_name} {calibrate_command.name}"
        yield click.Context(calibrate_command, ctx.parent, name)


@command(
    "plan",
    examples=r"""
        gangline plan --params 7B --tokens 300B --gpus 64xH100
        gangline plan --params 7B --tokens 300B --deadline 14d --price 2.5
        gangline plan --model config.json --gpus 64xA100-40G --html plan.html
        gangline plan --params 70B --gpus 64 --layout tp=8,zero=3,recompute=full
        gangline plan --params 70B --adapter qlora --gpus 1
        gangline plan --params 7B --gpus 16 -o job -- train.py --epochs 3
        gangline plan --trace train.py:make_model --input 8x3x224x224 \
          --samples 1.28M --epochs 90
        gangline plan --check digits   # are its requests enough?
    """,
    cls=PlanCommand,
)
@model_options
@section(
    "Training",
    click.option("--samples", type=AMOUNT, help="With --trace: samples of an epoch."),
    click.option("--epochs", type=AMOUNT, help="With --trace: epochs.  [default: 1]"),
    click.option(
        "--tokens", type=AMOUNT, help="Tokens of the training; default: 20 per parameter."
    ),
    click.option("--batch", type=COUNT, help="Samples of an optimizer step, over all GPUs."),
    click.option(
        "--precision", help="Number formats.  [default: mixed]", type=click.Choice(PRECISIONS)
    ),
    click.option(
        "--optimizer",
        help="The optimizer.  [default: adam]",
        type=click.Choice(["adam", "adam-8bit", "adafactor", "momentum", "sgd"]),
    ),
    click.option(
        "--adapter",
        type=click.Choice(["lora", "qlora"]),
        help="Train adapters only; qlora: beside weights of 4 bits.",
    ),
    click.option("--adapter-rank", type=COUNT, help="Rank of the adapters.  [default: 16]"),
    click.option(
        "--offload", is_flag=True, help="Keep the optimizer and its states in host memory."
    ),
    click.option(
        "--compile/--no-compile",
        "compiled",
        default=True,
        help="Whether torch.compile or fused kernels are used.  [default: compile]",
    ),
    click.option(
        "--fused-loss", is_flag=True, help="The loss needs no logits in 32 bits: chunked or fused."
    ),
    click.option(
        "--layout",
        metavar="PARTS",
        help="Pin parts of the layout, such as dp=8,tp=8,zero=3,recompute=op.",
    ),
    click.option(
        "--causal",
        is_flag=True,
        help="Count the attention to earlier tokens only, half of the pairs.",
    ),
    click.option(
        "--sample-cpu",
        type=SECONDS,
        help="Time of a core for a sample, such as 5ms; default: by size.",
    ),
)
@section(
    "Hardware",
    click.option("--gpu", help=f"The kind of GPU.  [default: {DEFAULT_GPU}]"),
    click.option(
        "--gpus",
        type=_GpuCount(),
        help="Number of GPUs, such as 64 or 64xA100-40G; default: the fewest for the goals.",
    ),
    click.option("--nodes", type=COUNT, help="Number of nodes, in place of --gpus."),
    click.option("--gpus-per-node", "node_gpus", type=COUNT, help="GPUs of a node."),
    click.option(
        "--peak", type=AMOUNT, help="Operations per second in the training's format, such as 312T."
    ),
    click.option("--memory", type=AMOUNT, help="Memory of a GPU in bytes, such as 80G."),
    click.option(
        "--network", type=AMOUNT, help="Network of a node in bits per second, such as 400G."
    ),
    click.option(
        "--efficiency",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        help="Measured share of the peak; default: calibrated, or that of public runs.",
    ),
    click.option(
        "--runs",
        type=click.Choice(["tuned", "typical"]),
        default="tuned",
        show_default=True,
        help="The public runs whose efficiency is assumed.",
    ),
    click.option(
        "--calibration",
        metavar="FILE",
        help="File of 'plan calibrate'; 'off': ignore that of this machine.",
    ),
)
@section(
    "Goals",
    click.option("--price", type=AMOUNT, help="Price of a GPU for an hour."),
    click.option("--deadline", type=DURATION, help="Longest training, such as 7d."),
    click.option("--budget", type=AMOUNT, help="Most money; needs --price."),
)
@section(
    "Job of a cluster",
    click.option("--like", metavar="JOB", help="Take model and GPUs of a job of the cluster."),
    click.option("--check", metavar="JOB", help="Compare the resources of a job with the plan."),
    click.option("-f", "--file", metavar="FILE", help="Compare those of a manifest; '-': input."),
    click.option("-n", "--namespace", help="Namespace of the job."),
    click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Kubeconfig for the job."),
    click.option("--context", help="Context of the kubeconfig."),
)
@click.option(
    "-o",
    "--output",
    default="table",
    show_default=True,
    help="Format of the result.",
    type=click.Choice(["table", "json", "yaml", "job"]),
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the plan as a page, too.",
)
@click.option("--name", default="train", show_default=True, help="With -o job: the job's name.")
@click.option(
    "--image", default="pytorch/pytorch:latest", show_default=True, help="With -o job: the image."
)
@click.option(
    "--as",
    "estimator",
    type=click.Choice(["gangline", "deepspeed"]),
    default="gangline",
    show_default=True,
    help="deepspeed: what DeepSpeed's own estimator of model states says.",
)
@click.argument("command", nargs=-1)
def plan_command(command: tuple[str, ...], **flags: Unpack[PlanFlags]) -> None:
    """Plan a training: memory, time, cost and the best layouts, before anything runs.

    With -o job a PyTorchJob that runs COMMAND is printed, ready for 'kubectl apply'.
    'gangline plan calibrate' measures this machine; see 'gangline plan calibrate --help'.
    """
    from gangline.sizing.curve import time_curve
    from gangline.sizing.hardware import UnknownDeviceError
    from gangline.sizing.model import ShapeError
    from gangline.sizing.plan import make_plan

    _check_flags(flags, command)
    job = _job(flags)
    try:
        request = _request(flags, job)
        plan = make_plan(request)
        is_shown = flags["output"] == "table" or flags["html"]
        curve = time_curve(request, plan) if is_shown and not (job and not flags["like"]) else ()
    except UnknownDeviceError as error:
        raise CommandError(f"--gpu: {error} (--peak and --memory)", code=ExitCode.USAGE) from error
    except ShapeError as error:
        prefix = "" if "/" in error.field else "--"
        raise CommandError(f"{prefix}{error}", code=ExitCode.USAGE) from error
    if job and not flags["like"]:
        _print_check(job, plan, flags["output"])
        return
    if flags["html"]:
        _write_page(flags["html"], plan, curve)
    _print(plan, curve, flags, command)
    if plan.misses or not plan.fits:
        raise click.exceptions.Exit(NOTHING_FITS)


def _check_flags(flags: PlanFlags, command: tuple[str, ...]) -> None:
    """Check that the options do not contradict each other."""
    check_model_flags(flags)
    jobs = [f"--{name}" for name in ("like", "check", "file") if flags[name]]
    if len(jobs) > 1:
        raise click.UsageError(f"{' and '.join(jobs)} name two jobs; give one of them")
    if flags["trace"]:
        if flags["tokens"]:
            raise click.UsageError("--trace counts samples: give --samples in place of --tokens")
        if not flags["samples"]:
            raise click.UsageError("--trace needs --samples, the samples of an epoch")
    elif flags["samples"] or flags["epochs"]:
        raise click.UsageError("--samples and --epochs need --trace; else give --tokens")
    elif flags["python"]:
        raise click.UsageError("--python has no effect without --trace")
    if flags["adapter_rank"] and not flags["adapter"]:
        raise click.UsageError("--adapter-rank has no effect without --adapter")
    if flags["gpu"] and flags["gpus"] and flags["gpus"].kind:
        raise click.UsageError(
            f"--gpus {flags['gpus'].count}x{flags['gpus'].kind} names the kind of GPU, too: "
            "omit --gpu"
        )
    if flags["budget"] and not flags["price"]:
        raise click.UsageError("--budget needs --price: prices are never built in")
    _check_calibration(flags)
    _check_effects(flags)
    if command and flags["output"] != "job":
        raise click.UsageError(f"{command[0]!r} is a part of a job's command, which needs -o job")
    if flags["estimator"] == "deepspeed" and flags["output"] != "table":
        raise click.UsageError(f"--as deepspeed prints a table only: omit -o {flags['output']}")
    if flags["output"] == "job" and (flags["check"] or flags["file"]):
        raise click.UsageError("-o job contradicts --check, which prints no job")


def _check_effects(flags: PlanFlags) -> None:
    """Refuse options of the command line that nothing would read."""
    source = click.get_current_context().get_parameter_source
    readers = {
        ("name", "image"): ("-o job", flags["output"] == "job"),
        ("namespace", "kubeconfig", "context"): (
            "--like or --check",
            bool(flags["like"] or flags["check"]),
        ),
    }
    for names, (reader, is_read) in readers.items():
        given = [f"--{name}" for name in names if source(name) is ParameterSource.COMMANDLINE]
        if given and not is_read:
            raise click.UsageError(f"{', '.join(given)} has no effect without {reader}")


def _check_calibration(flags: PlanFlags) -> None:
    if (flags["calibration"] or NO_CALIBRATION) == NO_CALIBRATION:
        return
    given = [f"--{name}" for name in ("efficiency", "peak", "causal") if flags[name]]
    if given:
        raise click.UsageError(f"{' and '.join(given)} contradicts --calibration: omit one of them")


def _job(flags: PlanFlags) -> "JobSource | None":
    """Return the job that the options name."""
    from gangline.cli.planning.job_request import JobSource

    if flags["file"]:
        from gangline.cli.submit.manifests import read_manifests

        return JobSource(read_manifests(flags["file"])[0])
    name = flags["like"] or flags["check"]
    if not name:
        return None
    from gangline.cli.params.target import resolve_target
    from gangline.cli.planning.job_request import load_job

    return asyncio.run(load_job(resolve_target(flags), name))


def _request(flags: PlanFlags, job: "JobSource | None") -> "PlanRequest":
    from gangline.cli.planning.job_request import read_job_request
    from gangline.sizing.efficiency import Runs
    from gangline.sizing.goals import read_record
    from gangline.sizing.hardware import Optimizer, Precision, state_bytes
    from gangline.sizing.layout import parse_pins
    from gangline.sizing.plan import PlanRequest

    record = read_record(job.annotations) if job else None
    requested = read_job_request(job) if job else None
    if job and requested is None and not flags["gpus"]:
        raise CommandError("the job requests no GPUs: give --gpus", code=ExitCode.USAGE)
    precision = Precision(flags["precision"] or (record.precision if record else "mixed"))
    optimizer = Optimizer(flags["optimizer"] or (record.optimizer if record else "adam"))
    element = state_bytes(precision).element
    calibration = _calibration(flags, record, requested, element)
    device = _device(flags, record, requested, calibration, element)
    model = record.model if record and not names_model(flags) else read_model(flags)
    model = _with_attention(model, flags, is_recorded=record is not None)
    batch = flags["batch"] or (record.global_batch if record else 0)
    efficiency = flags["efficiency"] or 0.0
    if job and job.steps_per_s and requested and batch and not efficiency:
        reached = model.sample_flops * batch * job.steps_per_s / requested.gpus
        fp8 = precision is Precision.FP8
        efficiency = min(reached / device.peak(element, fp8=fp8), 0.99)
    return PlanRequest(
        model=model,
        device=device,
        devices=_devices(flags, device, requested),
        tokens=flags["tokens"]
        or (flags["samples"] or 0.0) * (flags["epochs"] or 1.0)
        or (record.tokens if record else 0.0),
        global_batch=batch,
        precision=precision,
        optimizer=optimizer,
        adapter=flags["adapter"] or (record.adapter if record else ""),
        adapter_rank=flags["adapter_rank"] or (record.adapter_rank if record else 16),
        offload=flags["offload"] or bool(record and record.offload),
        compiled=flags["compiled"],
        fused_loss=flags["fused_loss"],
        pins=parse_pins(flags["layout"] or ""),
        runs=Runs(flags["runs"]),
        efficiency=efficiency,
        price_per_device_hour=flags["price"] or 0.0,
        deadline_s=flags["deadline"] or 0.0,
        budget=flags["budget"] or 0.0,
        calibration=calibration,
        sample_cpu_s=flags["sample_cpu"] or 0.0,
    )


def _with_attention(
    model: "TransformerModel | TracedModel", flags: PlanFlags, *, is_recorded: bool
) -> "TransformerModel | TracedModel":
    """Return the model with ``--causal``, and with ``--seq`` in place of the job's."""
    from gangline.sizing.traced import TracedModel

    changed: dict[str, Any] = {"causal": True} if flags["causal"] else {}
    if is_recorded and flags["sequence"]:
        changed["sequence"] = flags["sequence"]
    if changed and isinstance(model, TracedModel):
        names = "--causal" if flags["causal"] else "--seq"
        raise click.UsageError(f"{names} has no effect on a traced model, whose step is counted")
    if not changed or isinstance(model, TracedModel):
        return model
    return replace(model, shape=replace(model.shape, **changed))


def _calibration(
    flags: PlanFlags,
    record: "PlannedTraining | None",
    requested: "JobRequest | None",
    element: int,
) -> "Calibration | None":
    """Return the calibration that is given, else that of this machine for the kind of GPU."""
    from gangline.cli.planning.calibrate import find_calibration, load_calibration
    from gangline.sizing.hardware import UnknownDeviceError, find_device

    file = flags["calibration"]
    if file == NO_CALIBRATION or flags["efficiency"]:
        return None
    name = _gpu_name(flags, record, requested)
    with contextlib.suppress(UnknownDeviceError):  # a calibration may describe it
        name = find_device(name).name
    if file is None:
        measured = find_calibration(name)
        is_other = flags["causal"] or flags["peak"]  # it counts the attention in full, by its peak
        return measured if measured and measured.element == element and not is_other else None
    calibration = load_calibration(Path(file))
    if flags["gpu"] and calibration.device.name.upper() != name.upper():
        raise click.UsageError(
            f"--gpu {flags['gpu']} contradicts --calibration, which is of {calibration.device.name}"
        )
    if calibration.element != element:
        raise click.UsageError(
            f"--calibration was measured with {8 * calibration.element} bits, the training has "
            f"{8 * element}: give another --precision, or calibrate with it"
        )
    return calibration


def _gpu_name(
    flags: PlanFlags, record: "PlannedTraining | None", requested: "JobRequest | None"
) -> str:
    stated = requested.gpu if requested else ""
    kind = flags["gpus"].kind if flags["gpus"] else ""
    return flags["gpu"] or kind or stated or (record.gpu if record else "") or DEFAULT_GPU


def _device(
    flags: PlanFlags,
    record: "PlannedTraining | None",
    requested: "JobRequest | None",
    calibration: "Calibration | None",
    element: int,
) -> "DeviceModel":
    from gangline.sizing import hardware

    name = _gpu_name(flags, record, requested)
    if calibration and (not flags["gpu"] or calibration.device.name.upper() == name.upper()):
        device = calibration.device
    else:
        try:
            device = hardware.find_device(name)
        except hardware.UnknownDeviceError:
            if not (flags["peak"] and flags["memory"]):
                raise
            device = hardware.DeviceModel(name, flags["peak"], flags["memory"], 0.4)
    network = flags["network"]
    return hardware.with_overrides(
        device,
        peak_flops=flags["peak"] if element == 2 else None,
        fp32_flops=flags["peak"] if element == 4 else None,
        memory_bytes=flags["memory"],
        node_devices=flags["node_gpus"] or (requested.pod_gpus if requested else None),
        node_bandwidth=network / 8 if network else None,
    )


def _devices(flags: PlanFlags, device: "DeviceModel", requested: "JobRequest | None") -> int:
    gpus, nodes = flags["gpus"].count if flags["gpus"] else 0, flags["nodes"]
    if gpus and nodes and gpus != nodes * device.node_devices:
        raise click.UsageError(
            f"--gpus {gpus} contradicts --nodes {nodes} with {device.node_devices} GPUs each; "
            "give one of them, or --gpus-per-node"
        )
    total = gpus or (nodes or 0) * device.node_devices
    if max(total, flags["node_gpus"] or 0) > MOST_GPUS:
        limits = {"gpus": gpus, "nodes": nodes, "gpus-per-node": flags["node_gpus"]}
        given = " ".join(f"--{flag} {count}" for flag, count in limits.items() if count)
        raise click.UsageError(f"{given}: a plan has at most {MOST_GPUS} GPUs")
    return requested.gpus if requested and not total else total


def _write_page(file: Path, plan: "Plan", curve: "tuple[CurvePoint, ...]") -> None:
    from gangline.cli.planning.page import plan_page

    try:
        file.write_text(plan_page(plan, curve), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--html: {error}", code=ExitCode.USAGE) from error


def _print(
    plan: "Plan", curve: "tuple[CurvePoint, ...]", flags: PlanFlags, command: tuple[str, ...]
) -> None:
    from gangline.cli.planning.table import deepspeed_table, plan_table, shortfall
    from gangline.sizing.report import plan_document

    if flags["estimator"] == "deepspeed":
        click.echo(deepspeed_table(plan))
        return
    match flags["output"]:
        case "table":
            click.echo(plan_table(plan, curve))
        case "job" if not plan.fits:
            raise CommandError(f"no layout fits, so there is no job: {shortfall(plan)}")
        case "job":
            click.echo(planned_job(plan, flags["name"], flags["image"], command))
        case form:
            click.echo(serialize(without_rounding_errors(plan_document(plan)), form).rstrip("\n"))


def _print_check(job: "JobSource", plan: "Plan", output: str) -> None:
    """Print what the job requests beside what the plan computes; fail if something is too small."""
    from dataclasses import asdict

    from gangline.cli.planning.job_request import read_job_request
    from gangline.cli.planning.table import check_table
    from gangline.sizing.goals import ResourceVerdict, check_job

    request = read_job_request(job)
    if request is None:
        raise CommandError("the job requests no GPUs, so there is nothing to check")
    findings = check_job(request, plan)
    if output == "table":
        click.echo(check_table(findings))
    else:
        click.echo(serialize([asdict(finding) for finding in findings], output).rstrip("\n"))
    if any(finding.verdict is ResourceVerdict.TOO_SMALL for finding in findings):
        raise click.exceptions.Exit(NOTHING_FITS)
