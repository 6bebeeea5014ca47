"""``gangline plan``: what a training needs, and the layouts that fit, before anything runs."""

import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.render.output import format_table, serialize

if TYPE_CHECKING:
    from gangline.sizing.hardware import Device
    from gangline.sizing.model import ModelShape
    from gangline.sizing.plan import Plan
    from gangline.sizing.traced import TracedModel
    from gangline.sizing.transformer import TransformerModel
    from gangline.sizing.uncertainty import Range

PRECISIONS = ("mixed", "mixed-fp32-gradients", "autocast", "bf16", "fp32")
TRACE_TIMEOUT_S = 300
NOTHING_FITS = 3
"""Exit status when no layout fits."""
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_DURATIONS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
GIB = 1e9
_SUFFIX = ("", "K", "M", "B", "T")


class _Amount(click.ParamType[float]):
    """A number such as 7e9, 7B or 300G."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip().lower()
        unit = _UNITS.get(text[-1:], 1.0)
        try:
            number = float(text[:-1] if text[-1:] in _UNITS else text) * unit
        except ValueError:
            self.fail(f"{value!r} is not a number such as 7e9 or 7B", param, ctx)
        if not 0 < number < float("inf"):
            self.fail(f"{value!r} must be greater than 0", param, ctx)
        return number


class _Duration(click.ParamType[float]):
    """A duration such as 36h or 7d, in seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip().lower()
        try:
            seconds = float(text[:-1]) * _DURATIONS[text[-1:]]
        except (KeyError, ValueError):
            self.fail(f"{value!r} is not a duration such as 36h or 7d", param, ctx)
        if not 0 < seconds < float("inf"):
            self.fail(f"{value!r} must be greater than 0", param, ctx)
        return seconds


AMOUNT, DURATION = _Amount(), _Duration()
COUNT = click.IntRange(min=1)


class PlanFlags(TypedDict):
    """Options of the command."""

    trace: str | None
    input_shape: str | None
    token_ids: bool
    python: str
    samples: float | None
    epochs: float | None
    config: Path | None
    params: float | None
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    gated: bool
    vocab: int | None
    untied: bool
    experts: int | None
    active_experts: int | None
    sequence: int | None
    tokens: float | None
    batch: int | None
    gpu: str
    gpus: int | None
    nodes: int | None
    node_gpus: int | None
    peak: float | None
    memory: float | None
    network: float | None
    efficiency: float | None
    precision: str
    optimizer: str
    price: float | None
    deadline: float | None
    budget: float | None
    output: str
    name: str
    image: str
    estimator: str


@click.command("plan")
@click.option("--config", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="The model's config.json of Hugging Face.")  # fmt: skip
@click.option("--trace", metavar="FILE:FUNCTION",
              help="Trace the model that FUNCTION returns, on PyTorch's meta device.")  # fmt: skip
@click.option("--input", "input_shape", metavar="SHAPE",
              help="With --trace: the shape of a batch, such as 8x3x224x224.")  # fmt: skip
@click.option("--token-ids", is_flag=True, help="With --trace: the input is token ids.")
@click.option("--python", default=sys.executable, help="With --trace: the interpreter with torch.",
              show_default="this one")  # fmt: skip
@click.option("--samples", type=AMOUNT, help="With --trace: samples of an epoch.")
@click.option("--epochs", type=AMOUNT, help="With --trace: epochs.  [default: 1]")
@click.option("--params", type=AMOUNT, help="Number of parameters, such as 7B.")
@click.option("--layers", type=COUNT, help="Number of layers.")
@click.option("--hidden", type=COUNT, help="Width of the model.")
@click.option("--heads", type=COUNT, help="Attention heads.")
@click.option("--kv-heads", type=COUNT, help="Heads of keys and values; default: as many.")
@click.option("--ffn", type=COUNT, help="Width of the MLP; default: 4 x hidden.")
@click.option("--gated", is_flag=True, help="The MLP is gated, as in Llama; without biases.")
@click.option("--vocab", type=COUNT, help="Tokens of the vocabulary.")
@click.option("--untied", is_flag=True, help="The output layer has a matrix of its own.")
@click.option("--experts", type=COUNT, help="Experts of each layer.")
@click.option("--active-experts", type=COUNT, help="Experts that process a token.")
@click.option("--seq", "sequence", type=COUNT, help="Tokens of a sample.  [default: 2048]")
@click.option("--tokens", type=AMOUNT, help="Tokens of the training; default: 20 per parameter.")
@click.option("--batch", type=COUNT, help="Samples of an optimizer step, over all GPUs.")
@click.option("--gpu", default="H100", show_default=True, help="The kind of GPU.")
@click.option("--gpus", type=COUNT, help="Number of GPUs.")
@click.option("--nodes", type=COUNT, help="Number of nodes, in place of --gpus.")
@click.option("--gpus-per-node", "node_gpus", type=COUNT, help="GPUs of a node.")
@click.option("--peak", type=AMOUNT, help="16-bit operations per second of a GPU, such as 312T.")
@click.option("--memory", type=AMOUNT, help="Memory of a GPU in bytes, such as 80G.")
@click.option("--network", type=AMOUNT, help="Network of a node in bits per second, such as 400G.")
@click.option("--efficiency", type=click.FloatRange(0, 1, min_open=True, max_open=True),
              help="Measured share of the peak; default: usual for the GPU.")  # fmt: skip
@click.option("--precision", default="mixed", show_default=True, help="Number formats.",
              type=click.Choice(PRECISIONS))  # fmt: skip
@click.option("--optimizer", default="adam", show_default=True, help="The optimizer.",
              type=click.Choice(["adam", "adam-8bit", "adafactor", "momentum", "sgd"]))  # fmt: skip
@click.option("--price", type=AMOUNT, help="Price of a GPU for an hour.")
@click.option("--deadline", type=DURATION, help="Longest training, such as 7d.")
@click.option("--budget", type=AMOUNT, help="Most money; needs --price.")
@click.option("-o", "--output", default="table", show_default=True, help="Format of the result.",
              type=click.Choice(["table", "json", "yaml", "job"]))  # fmt: skip
@click.option("--name", default="train", show_default=True, help="With -o job: the job's name.")
@click.option("--image", default="pytorch/pytorch:latest", show_default=True,
              help="With -o job: the image.")  # fmt: skip
@click.option("--as", "estimator", type=click.Choice(["gangline", "deepspeed"]),
              default="gangline", show_default=True,
              help="deepspeed: what DeepSpeed's own estimator of model states says.")  # fmt: skip
@click.argument("command", nargs=-1)
def plan_command(command: tuple[str, ...], **flags: Unpack[PlanFlags]) -> None:
    """Plan a training: memory, time, cost and the best layouts, before anything runs.

    With -o job a PyTorchJob that runs COMMAND is printed, ready for 'kubectl apply'.

    \b
    gangline plan --params 7B --seq 4096 --tokens 300B --gpu H100 --gpus 64
    gangline plan --config config.json --gpu A100-40GB --nodes 8 -o json
    gangline plan --params 7B --gpus 16 -o job -- train.py --epochs 3
    gangline plan --trace train.py:make_model --input 8x3x224x224 --samples 1.28M --epochs 90
    """
    from gangline.sizing.hardware import UnknownDeviceError  # noqa: PLC0415 - not needed for --help
    from gangline.sizing.model import ShapeError  # noqa: PLC0415
    from gangline.sizing.plan import PlanRequest, make_plan  # noqa: PLC0415
    from gangline.sizing.precision import Optimizer, Precision  # noqa: PLC0415

    if flags["budget"] and not flags["price"]:
        raise click.UsageError("--budget needs --price: prices are never built in")
    try:
        device = _device(flags)
        plan = make_plan(
            PlanRequest(
                model=_model(flags),
                device=device,
                devices=_devices(flags, device),
                tokens=flags["tokens"] or _samples(flags),
                global_batch=flags["batch"] or 0,
                precision=Precision(flags["precision"]),
                optimizer=Optimizer(flags["optimizer"]),
                efficiency=flags["efficiency"] or 0.0,
                price_per_device_hour=flags["price"] or 0.0,
                deadline_s=flags["deadline"] or 0.0,
                budget=flags["budget"] or 0.0,
            )
        )
    except UnknownDeviceError as error:
        raise CommandError(f"--gpu: {error} (--peak and --memory)", code=ExitCode.USAGE) from error
    except ShapeError as error:
        prefix = "config.json: " if flags["config"] else "--"
        raise CommandError(f"{prefix}{error}", code=ExitCode.USAGE) from error
    if flags["estimator"] == "deepspeed":
        click.echo(_deepspeed(plan))
        return
    _print(plan, flags, command)
    if not plan.fits:
        raise click.exceptions.Exit(NOTHING_FITS)


def _model(flags: PlanFlags) -> "TransformerModel | TracedModel":
    from gangline.sizing.transformer import TransformerModel  # noqa: PLC0415

    return _traced(flags) if flags["trace"] else TransformerModel(_shape(flags))


def _traced(flags: PlanFlags) -> "TracedModel":
    """Trace the model in its own interpreter."""
    import json  # noqa: PLC0415
    import subprocess  # noqa: PLC0415

    from gangline.sizing.traced import read_trace  # noqa: PLC0415

    if not flags["input_shape"]:
        raise click.UsageError("--trace needs --input SHAPE, such as 8x3x224x224")
    if not flags["samples"]:
        raise click.UsageError("--trace needs --samples, the samples of an epoch")
    program = str(files("gangline.sizing.sources") / "trace.py")
    command = [flags["python"], program, str(flags["trace"]), "--batch", flags["input_shape"]]
    command += ["--tokens"] if flags["token_ids"] else []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TRACE_TIMEOUT_S, check=False
        )
    except OSError as error:
        raise CommandError(f"--python: {error}", code=ExitCode.USAGE) from error
    except subprocess.TimeoutExpired:
        raise CommandError(f"the trace did not end within {TRACE_TIMEOUT_S} s") from None
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise CommandError(
            f"{flags['trace']} cannot be traced: {reason}",
            hint="Give the model by --config, --params or its dimensions.",
            code=ExitCode.USAGE,
        )
    return read_trace(json.loads(done.stdout.splitlines()[-1]))


def _samples(flags: PlanFlags) -> float:
    return (flags["samples"] or 0.0) * (flags["epochs"] or 1.0) if flags["trace"] else 0.0


def _device(flags: PlanFlags) -> "Device":
    from gangline.sizing import hardware  # noqa: PLC0415

    try:
        device = hardware.find_device(flags["gpu"])
    except hardware.UnknownDeviceError:
        if not (flags["peak"] and flags["memory"]):
            raise
        device = hardware.Device(flags["gpu"], flags["peak"], flags["memory"], 0.4)
    network = flags["network"]
    return hardware.with_overrides(
        device,
        peak_flops=flags["peak"],
        memory_bytes=flags["memory"],
        node_devices=flags["node_gpus"],
        node_bandwidth=network / 8 if network else None,
    )


def _devices(flags: PlanFlags, device: "Device") -> int:
    gpus, nodes = flags["gpus"], flags["nodes"]
    if gpus and nodes and gpus != nodes * device.node_devices:
        raise click.UsageError(
            f"--gpus {gpus} contradicts --nodes {nodes} with {device.node_devices} GPUs each; "
            "give one of them, or --gpus-per-node"
        )
    return gpus or (nodes or 1) * device.node_devices


def _shape(flags: PlanFlags) -> "ModelShape":
    from gangline.sizing.model import ModelShape  # noqa: PLC0415
    from gangline.sizing.sources.guess import shape_of_size  # noqa: PLC0415
    from gangline.sizing.sources.huggingface import shape_from_config  # noqa: PLC0415

    dimensions = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts")
    given = [f"--{name.replace('_', '-')}" for name in dimensions if flags[name]]  # type: ignore[literal-required]
    if flags["config"]:
        if given or flags["params"]:
            raise click.UsageError(f"--config already says what {given or '--params'} would")
        return shape_from_config(_read_config(flags["config"]), flags["sequence"] or 0)
    sequence = flags["sequence"] or 2048
    if flags["params"] and not flags["vocab"] and not flags["experts"]:
        return shape_of_size(
            flags["params"],
            sequence,
            layers=flags["layers"] or 0,
            hidden=flags["hidden"] or 0,
            heads=flags["heads"] or 0,
        )
    if not (flags["layers"] and flags["hidden"] and flags["heads"]):
        raise click.UsageError(
            "the model is missing: give --config FILE, --params NUMBER, or --layers, --hidden "
            "and --heads"
        )
    return ModelShape(
        layers=flags["layers"],
        hidden=flags["hidden"],
        heads=flags["heads"],
        sequence=sequence,
        vocab=flags["vocab"] or 0,
        kv_heads=flags["kv_heads"] or 0,
        ffn=flags["ffn"] or 0,
        gated=flags["gated"],
        tied=not flags["untied"],
        biases=not flags["gated"],
        experts=flags["experts"] or 0,
        active_experts=flags["active_experts"] or (2 if flags["experts"] else 0),
        exact_parameters=round(flags["params"] or 0),
    )


def _read_config(path: Path) -> dict[str, Any]:
    import json  # noqa: PLC0415

    try:
        config = json.loads(path.read_text())
    except (ValueError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: not a JSON file: {error}", code=ExitCode.USAGE) from error
    if not isinstance(config, dict):
        raise CommandError(f"{path}: must be a JSON object", code=ExitCode.USAGE)
    return config


def _print(plan: "Plan", flags: PlanFlags, command: tuple[str, ...]) -> None:
    from gangline.sizing.report import plan_document  # noqa: PLC0415

    match flags["output"]:
        case "table":
            click.echo(_table(plan))
        case "job" if not plan.fits:
            raise CommandError(f"no layout fits, so there is no job: {_shortfall(plan)}")
        case "job":
            from gangline.cli.submit.planned_job import planned_job  # noqa: PLC0415

            click.echo(planned_job(plan, flags["name"], flags["image"], command))
        case form:
            click.echo(serialize(plan_document(plan), form).rstrip("\n"))


def _deepspeed(plan: "Plan") -> str:
    from gangline.sizing.memory import deepspeed_estimates, largest_module  # noqa: PLC0415
    from gangline.sizing.traced import TracedModel  # noqa: PLC0415

    model, devices = plan.request.model, plan.request.devices
    if isinstance(model, TracedModel):
        largest = model.largest_module
    else:
        largest = largest_module(model.shape)
    found = deepspeed_estimates(model.parameters, largest, devices)
    head = ("STAGE", "IN HOST MEMORY", "PER GPU")
    rows = [(f"ZeRO-{e.stage}", e.offload, f"{e.device_bytes / 2**30:.2f} GiB") for e in found]
    return format_table(head, rows)


def _table(plan: "Plan") -> str:
    request = plan.request
    lines = [
        f"Model      {_short(plan.parameters)} parameters, {_dimensions(plan)}",
        f"Training   {_short(plan.tokens)} {_unit(plan)}, {plan.model_flops:.2e} operations, "
        f"{plan.global_batch} samples a step",
        f"Hardware   {request.devices} x {request.device.name}, "
        f"{request.device.memory_bytes / GIB:.0f} GB each",
    ]
    if plan.choices:
        lines += ["", _choices(plan), "", *_best(plan)]
    else:
        lines += ["", f"No layout fits: {_shortfall(plan)}"]
    lines += [f"Missed     {miss}" for miss in plan.misses]
    lines += [f"Assumed    {assumed}" for assumed in plan.assumptions]
    return "\n".join(lines)


def _dimensions(plan: "Plan") -> str:
    from gangline.sizing.traced import TracedModel  # noqa: PLC0415

    model = plan.request.model
    if isinstance(model, TracedModel):
        return f"traced, {_short(model.sample_flops)} operations a sample"
    return f"{model.shape.layers} layers, {model.shape.sequence} tokens a sample"


def _unit(plan: "Plan") -> str:
    return "tokens" if plan.request.model.sample_tokens > 1 else "samples"


def _choices(plan: "Plan") -> str:
    head = ("LAYOUT", "MICRO-BATCH", "RECOMPUTE", "MEMORY", "STEP", "MFU", "TRAINING")
    rows = [
        (
            each.layout_title,
            each.candidate.layout.micro_batch,
            each.candidate.layout.recompute.value,
            f"{each.candidate.memory.total / GIB:.0f} GB",
            f"{each.step_s.middle:.3g} s",
            f"{each.utilisation:.0%}",
            _span(each.training_s),
        )
        for each in plan.choices
    ]
    return format_table(head, rows)


def _best(plan: "Plan") -> list[str]:
    best = plan.choices[0]
    memory = best.candidate.memory
    checkpoints = plan.checkpoints
    lines = [
        f"Best       {best.layout_title}: limited by {best.limited_by}",
        f"Memory     states {memory.states / GIB:.1f}, activations {memory.activations / GIB:.1f}, "
        f"logits {memory.logits / GIB:.1f}, working {memory.working / GIB:.1f}, "
        f"runtime {memory.runtime / GIB:.1f} GB",
        f"Speed      {_short(best.tokens_per_s.low)} to {_short(best.tokens_per_s.high)} "
        f"{_unit(plan)}/s",
    ]
    if best.bandwidth_needed is None:
        lines.append("Network    communication takes more than 5 % of a step on any network")
    elif best.bandwidth_needed:
        lines.append(
            f"Network    {best.bandwidth_needed * 8 / 1e9:.3g} Gbit/s per node keep exposed "
            "communication below 5 %"
        )
    lines.append(
        f"Storage    {checkpoints.size_bytes / GIB:.3g} GB a checkpoint, every "
        f"{checkpoints.interval_s / 60:.3g} min; {checkpoints.host_bytes_per_node / GIB:.3g} GB of "
        "host memory per node for checkpoints in memory"
    )
    if plan.cost:
        lines.append(f"Cost       {plan.cost.low:,.0f} to {plan.cost.high:,.0f}")
    return lines


def _shortfall(plan: "Plan") -> str:
    assert plan.nearest is not None
    has = plan.request.device.memory_bytes
    text = (
        f"the smallest, {plan.nearest.layout.title}, needs {plan.nearest.memory.high / GIB:.0f} GB "
        f"of the {has / GIB:.0f} GB of a GPU."
    )
    if plan.fitting_devices:
        return f"{text} {plan.fitting_devices} GPUs of this kind would do"
    return f"{text} Use a GPU with more memory"


def _span(seconds: "Range") -> str:
    unit, name = (86_400.0, "d") if seconds.middle > 172_800 else (3600.0, "h")
    return f"{seconds.low / unit:.3g} to {seconds.high / unit:.3g} {name}"


def _short(number: float) -> str:
    power = 0
    while number >= 999.5 and power < len(_SUFFIX) - 1:
        number /= 1000
        power += 1
    return f"{number:.3g}{_SUFFIX[power]}"
