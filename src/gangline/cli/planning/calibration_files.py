"""Where calibrations of this machine are stored."""

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.cli.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from gangline.sizing.measured.calibration import Calibration

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
    from gangline.sizing.measured.calibration import read_calibration
    from gangline.sizing.model import ShapeError

    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CommandError(f"--calibration: {file}: {error}", code=ExitCode.USAGE) from error
    if not isinstance(found, dict):
        raise ShapeError("calibration", f"{file} must be a JSON object")
    return read_calibration(found, str(file))


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
