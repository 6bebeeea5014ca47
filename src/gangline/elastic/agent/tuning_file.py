"""The parallel configuration file of a node: tuning for workers, in DLRover's format.

``ElasticDataLoader`` reads ``dataloader`` at the beginning of each pass, ``ElasticTrainer`` reads
``optimizer``, and the interval of checkpoints uses ``checkpoint``, which DLRover's format lacks.
The file is replaced by a rename, so a reader never sees a part of it.
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gangline.elastic.protocol.messages import LoaderValues, Tuning
from gangline.elastic.variables import LOADER_FILE_VARIABLES, TUNING_FILE_VARIABLE

log = logging.getLogger(__name__)
_NOTHING = Tuning(version=0)


class TuningFile:
    """Writes the file whenever its values change, with a higher version each time."""

    def __init__(self, path: Path, *, tunes_batch: bool) -> None:
        """Prepare the file; nothing is written before the first tuning.

        Args:
            tunes_batch: True if workers read the parts of loader and optimizer from it.
        """
        self._path, self.tunes_batch = path, tunes_batch
        self.version = 0
        """Version of the last tuning that was written; 0 for none."""
        self._written: Tuning | None = None
        self._parts = {name: {"version": 0, **part} for name, part in _parts(_NOTHING, "").items()}
        self._device_model = ""
        self._is_failing = False

    def apply(self, tuning: Tuning) -> None:
        if tuning.version > self.version:
            self._write(tuning)

    def set_device_model(self, device_model: str) -> None:
        """Choose the settings of the loader by the model of this node's devices."""
        if device_model and device_model != self._device_model:
            self._device_model = device_model
            if self._written is not None:
                self._write(self._written)

    def _write(self, tuning: Tuning) -> None:
        parts = {
            name: _with_version(part, self._parts[name])
            for name, part in _parts(tuning, self._device_model).items()
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            new.write_text(json.dumps({**parts, "restart": False}) + "\n", encoding="utf-8")
            new.replace(self._path)
        except OSError as error:
            if not self._is_failing:
                log.warning("the tuning of this job cannot be written: %s", error)
            self._is_failing = True
            return
        self._is_failing = False
        self._parts, self._written, self.version = parts, tuning, tuning.version


def _parts(tuning: Tuning, device_model: str) -> dict[str, dict[str, Any]]:
    loader = tuning.devices.get(device_model, tuning.dataloader)
    return {
        "dataloader": _loader_part(loader),
        "optimizer": {"optimizer_name": "", **_set_values(tuning.optimizer)},
        "checkpoint": {} if tuning.checkpoint is None else _set_values(tuning.checkpoint),
    }


def _loader_part(values: LoaderValues) -> dict[str, Any]:
    return {
        "dataloader_name": "",
        "last_batch_size": 0,
        "batch_size": values.batch_size or 0,  # 0 keeps the present one
        **{name: value for name, value in _set_values(values).items() if name != "batch_size"},
    }


def _set_values(values: msgspec.Struct) -> dict[str, Any]:
    return {
        name: value for name, value in msgspec.structs.asdict(values).items() if value is not None
    }


def _with_version(part: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Number a part. Its readers apply a higher version, so it rises with each change."""
    last = before["version"]
    return {"version": last + ({"version": last, **part} != before), **part}


def prepare_tuning_file(
    folder: Path, environment: Mapping[str, str], *, tunes_batch: bool
) -> tuple[TuningFile, dict[str, str]]:
    """Choose the file; return it with the variables that name it to workers.

    If data loaders are to read it (``tunes_batch``), a file that the environment names for them is
    used instead of a new one.
    """
    path, variables = folder / "tuning.json", {}
    if tunes_batch:
        named = (environment.get(name) for name in LOADER_FILE_VARIABLES)
        path = Path(next(filter(None, named), path))
        variables = dict.fromkeys(LOADER_FILE_VARIABLES, str(path))
    return TuningFile(path, tunes_batch=tunes_batch), {
        **variables,
        TUNING_FILE_VARIABLE: str(path),
    }
