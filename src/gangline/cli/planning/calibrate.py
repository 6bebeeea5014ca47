"""``gangline plan calibrate``: measures the efficiency and the network of this machine.

Calibrations are stored in ``$GANGLINE_HOME``, one file for each kind of GPU.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from gangline.api.figures import format_scaled
from gangline.cli.errors import CommandError, ExitCode
from gangline.cli.params.command import command
from gangline.cli.planning.model_flags import (
    COUNT,
    ModelFlags,
    check_model_flags,
    model_options,
    read_model,
    read_shape,
)

if TYPE_CHECKING:
    from gangline.sizing.calibration import Calibration

_COUNT = "import torch; print(torch.cuda.device_count())"
_COUNT_TIMEOUT_S = 120


def calibration_file(device: str) -> Path:
    """Return the file of a kind of device, in ``$GANGLINE_HOME``, else ``~/.gangline``."""
    home = Path(os.environ.get("GANGLINE_HOME") or Path.home() / ".gangline")
    name = "".join(
        letter if letter.isalnum() or letter == "-" else "-" for letter in device.upper()
    )
    return home / "calibrations" / f"{name}.json"


def find_calibration(device: str) -> "Calibration | None":
    """Read the calibration of a kind of device; None if it was never calibrated here."""
    file = calibration_file(device)
    return load_calibration(file) if file.is_file() else None


def load_calibration(file: Path) -> "Calibration":
    """Read a calibration.

    Raises:
        CommandError: the file cannot be read.
        ShapeError: it is no calibration.
    """
    from gangline.sizing.calibration import read_calibration
    from gangline.sizing.model import ShapeError

    try:
        document = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CommandError(f"--calibration: {file}: {error}", code=ExitCode.USAGE) from error
    if not isinstance(document, dict):
        raise ShapeError("calibration", f"{file} must be a JSON object")
    return read_calibration(document, str(file))


def gpus_here(python: str) -> int:
    """Count the GPUs that the interpreter's torch sees; 0 if it cannot say."""
    try:
        done = subprocess.run(
            [python, "-c", _COUNT],
            capture_output=True,
            text=True,
            timeout=_COUNT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    text = done.stdout.strip()
    return int(text) if text.isdigit() else 0


EVEN_WIDTH = 128
"""Kernels are fast for widths that this divides."""


class CalibrateFlags(ModelFlags):
    """Options of the calibration."""

    batch: int
    processes: int | None
    precision: str
    output: Path | None


@command(
    "calibrate",
    examples=r"""
        gangline plan calibrate --model config.json --batch 2
        gangline plan calibrate \
          --trace train.py:make_model --input 8x3x224x224
    """,
)
@model_options
@click.option("--batch", type=COUNT, default=4, show_default=True,
              help="Samples of a micro-batch; with --trace those of --input.")  # fmt: skip
@click.option("--processes", type=COUNT, help="Processes; default: one for each GPU, else two.")
@click.option("--precision", type=click.Choice(["bf16", "fp32"]), default="bf16",
              show_default=True, help="Number format of the products.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False),
              help="The file; default: where 'gangline plan' finds it.")  # fmt: skip
def calibrate_command(**flags: Unpack[CalibrateFlags]) -> None:
    """Measure the efficiency and the network of this machine for a model.

    Two layers of the model take 45 steps, then the output layer, the optimizer and all-reduces of
    several sizes are timed. The result replaces the usual efficiency of the GPU in 'gangline plan'.
    On processors samples are shortened and steps left out, so that it ends in two minutes.
    """

    from gangline.cli.planning.programs import run_calibration
    from gangline.sizing.calibration import read_calibration
    from gangline.sizing.model import ShapeError

    check_model_flags(flags)
    python = flags["python"] or sys.executable
    processes = flags["processes"] or gpus_here(python) or 2
    try:
        measured = run_calibration(python, _slice(flags), processes)
        calibration = read_calibration(measured, "this run")
    except ShapeError as error:
        raise CommandError(f"--{error}", code=ExitCode.USAGE) from error
    file = flags["output"] or calibration_file(calibration.device.name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(measured))
    except OSError as error:
        raise CommandError(f"-o: {error}", code=ExitCode.USAGE) from error
    costs = calibration.device.costs
    click.echo(f"Device      {processes} x {calibration.device.name}")
    click.echo(f"Efficiency  {calibration.source}")
    click.echo(
        f"Costs       {format_scaled(costs.pass_s, 's')} a layer and pass, "
        f"{format_scaled(costs.update_s, 's')} a parameter and update, "
        f"{format_scaled(costs.copy_s, 's')} a copied byte"
    )
    click.echo(f"File        {file}")


def _slice(flags: CalibrateFlags) -> dict[str, Any]:
    """Describe the slice for the program that times it."""
    element = 2 if flags["precision"] == "bf16" else 4
    if flags["trace"]:
        model = read_model(flags)
        shape = [int(size) for size in str(flags["input_shape"]).split("x")]
        return {
            "trace": flags["trace"], "input": shape, "tokens": flags["token_ids"],
            "batch": shape[0], "element": element, "sample_flops": model.sample_flops,
        }  # fmt: skip
    shape_given = read_shape(flags).shape
    ffn = shape_given.mlp_width
    if shape_given.exact_parameters:  # fitted to a number, but kernels prefer round ones
        ffn = -(-ffn // EVEN_WIDTH) * EVEN_WIDTH
    return {
        "hidden": shape_given.hidden,
        "heads": shape_given.heads,
        "kv_heads": shape_given.kv_heads or shape_given.heads,
        "ffn": ffn,
        "gated": shape_given.gated,
        "sequence": shape_given.sequence,
        "vocab": shape_given.vocab,
        "parameters": shape_given.parameters,
        "batch": flags["batch"],
        "element": element,
    }
