"""Our steps through PyTorch's own interface, and detection of folders in other formats."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings

from gangline.elastic.checkpoint import FlashReader, FlashWriter, ForeignFolderError
from gangline.elastic.checkpoint.format.manifest import step_folder
from gangline.elastic.checkpoint.ranks import SaveGroup
from gangline.elastic.checkpoint.restore.dcp_reader import load_state
from gangline.elastic.checkpoint.restore.restore import Restorer
from gangline.elastic.checkpoint.restore.source import StorageSource
from gangline.elastic.checkpoint.snapshot.directory import SaverSettings
from gangline.elastic.checkpoint.storage import commit
from gangline.elastic.checkpoint.storage.commit import committed_steps
from gangline.elastic.checkpoint.storage.target import LocalTarget
from unit.elastic.checkpoint.checkpoint_states import blank, equal, trees


def plainly(call: Any, *arguments: Any, **named: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that there is no process group
        call(*arguments, **named)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=trees())
def test_a_step_written_through_pytorch_is_ours_and_pytorch_s(
    tmp_path: Path, state: dict[str, Any]
) -> None:
    plainly(dcp.save, state, storage_writer=FlashWriter(tmp_path, 3))
    target = LocalTarget(str(tmp_path))
    assert committed_steps(target) == [3]
    source = StorageSource(target, 3)
    source.verify()
    assert equal(load_state(source, blank(state)), state)
    into = load_state(source, None)
    plainly(dcp.load, into, storage_reader=FlashReader.of_step(str(tmp_path), 3))
    assert equal(into, state)
    plainly(dcp.load, into, checkpoint_id=tmp_path / step_folder(3))
    assert equal(into, state)


def test_a_single_element_of_a_larger_tensor_is_written_and_filled(tmp_path: Path) -> None:
    numbers = torch.arange(4.0).to(torch.complex64)
    plainly(dcp.save, {"one": numbers[1:3:2]}, storage_writer=FlashWriter(tmp_path, 3))
    into = torch.zeros(4, dtype=torch.complex64)
    load_state(StorageSource(LocalTarget(str(tmp_path)), 3), {"one": into[2:4:2]})
    assert into.tolist() == [0, 0, 1, 0]


def plain_dcp(folder: Path) -> None:
    plainly(dcp.save, {"w": torch.ones(2)}, checkpoint_id=folder)


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (["best.pt"], r"of torch\.save.*torch\.load"),
        (["checkpoint-500/model.safetensors"], r"of torch\.save.*safetensors"),
        (plain_dcp, r"of torch\.distributed\.checkpoint.*checkpoint\.load"),
        (lambda folder: plain_dcp(folder / "100"), r"of torch\.distributed\.checkpoint"),
        (["100/rank_0.pt", "dlrover_latest.txt"], "of DLRover.*rank_RANK.pt"),
        (["latest_checkpointed_iteration.txt"], "of Megatron"),
    ],
    ids=["torch.save", "Hugging Face", "dcp", "dcp of several steps", "DLRover", "Megatron"],
)
def test_a_folder_of_another_format_is_refused_with_a_hint(
    rig: Any, tmp_path: Path, content: Any, hint: str
) -> None:
    if callable(content):
        content(tmp_path)
    else:
        for file in content:
            (tmp_path / file).parent.mkdir(exist_ok=True)
            (tmp_path / file).touch()
    restorer = Restorer(
        SaveGroup(), rig.job_folder, "here", SaverSettings(target=str(tmp_path), job="job")
    )
    with pytest.raises(ForeignFolderError, match=hint):
        restorer.load(None, None)


def test_unrelated_files_are_ignored(rig: Any) -> None:
    (rig.folder / "log.txt").touch()
    (rig.folder / "runs").mkdir()
    assert commit.detect_format(commit.list_folder_names(rig.target)) is None
    (rig.folder / "best.pt").touch()
    rig.save({"w": torch.ones(2)}, 5)
    rig.persist(5)
    assert commit.detect_format(commit.list_folder_names(rig.target)) is None
    restorer = Restorer(
        SaveGroup(), rig.job_folder, "here", SaverSettings(target=str(rig.folder), job="job")
    )
    loaded = restorer.load(None, None)
    assert loaded is not None
    assert loaded.step == 5
