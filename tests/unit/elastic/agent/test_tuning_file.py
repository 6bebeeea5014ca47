"""The parallel configuration file: DLRover's format, rising versions, no partial content."""

import json
from pathlib import Path
from typing import Any

from gangline.elastic.agent.tuning_file import TuningFile, prepare_tuning_file
from gangline.elastic.protocol.messages import (
    CheckpointValues,
    LoaderValues,
    OptimizerValues,
    Tuning,
)


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_file_has_the_format_of_dlrover(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.json"
    file = TuningFile(path, tunes_batch=True)
    file.apply(
        Tuning(
            version=7,
            dataloader=LoaderValues(16, 4, True),
            optimizer=OptimizerValues(0.1, None),
            checkpoint=CheckpointValues(2.0, 3600.0),
        )
    )
    assert read(path) == {
        "dataloader": {
            "version": 1, "dataloader_name": "", "last_batch_size": 0, "batch_size": 16,
            "num_workers": 4, "pin_memory": True,
        },
        "optimizer": {"version": 1, "optimizer_name": "", "learning_rate": 0.1},
        "restart": False,
        "checkpoint": {"version": 1, "failures": 2.0, "seconds": 3600.0},
    }  # fmt: skip
    assert file.version == 7
    assert [file_path.name for file_path in path.parent.iterdir()] == ["config.json"]


def test_version_rises_only_for_parts_that_change(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    file = TuningFile(path, tunes_batch=True)
    file.apply(Tuning(version=2, dataloader=LoaderValues(num_workers=4)))
    file.apply(Tuning(version=1, dataloader=LoaderValues(num_workers=9)))
    assert read(path)["dataloader"]["num_workers"] == 4, "an older tuning is ignored"
    file.apply(Tuning(version=3, dataloader=LoaderValues(num_workers=6)))
    content = read(path)
    assert (content["dataloader"]["version"], content["optimizer"]["version"]) == (2, 0)
    assert "pin_memory" not in content["dataloader"]
    file.apply(Tuning(version=4, dataloader=LoaderValues(num_workers=6)))
    assert (read(path)["dataloader"]["version"], file.version) == (2, 4), "nothing has changed"


def test_settings_follow_the_device_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    file = TuningFile(path, tunes_batch=True)
    tuning = Tuning(version=1, dataloader=LoaderValues(8), devices={"H100": LoaderValues(32)})
    file.apply(tuning)
    assert read(path)["dataloader"]["batch_size"] == 8
    file.set_device_model("H100")
    assert (read(path)["dataloader"]["batch_size"], read(path)["dataloader"]["version"]) == (32, 2)


def test_folder_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    file = TuningFile(tmp_path / "file" / "config.json", tunes_batch=False)
    file.apply(Tuning(version=1))
    assert file.version == 0, "it is offered again"


def test_variables_name_the_file_for_loaders_only_with_the_flag(tmp_path: Path) -> None:
    base = {"DLROVER_PARAL_CONFIG_PATH": "/of/the/user"}
    _, variables = prepare_tuning_file(tmp_path, base, tunes_batch=False)
    assert variables == {"GANGLINE_TUNING_FILE": str(tmp_path / "tuning.json")}
    _, variables = prepare_tuning_file(tmp_path, base, tunes_batch=True)
    assert set(variables.values()) == {"/of/the/user"}
    assert variables.keys() == {
        "DLROVER_PARAL_CONFIG_PATH",
        "GANGLINE_PARALLEL_CONFIG",
        "GANGLINE_TUNING_FILE",
    }
