"""Whose folders and files in shared memory are used."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.elastic.checkpoint.errors import CorruptError, InsecureMemoryError
from gangline.elastic.checkpoint.snapshot import directory
from gangline.elastic.checkpoint.snapshot.directory import FileLock, SaverSettings
from gangline.elastic.checkpoint.snapshot.segment import PAGE, Segment, create_segment

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs a file of another user")
OTHER = 4321


def test_own_folder_is_created_and_taken_again(tmp_path: Path) -> None:
    job_folder = directory.create_job_directory(tmp_path / "new/base", "job", "target")
    assert job_folder.stat().st_mode & 0o777 == 0o700
    assert directory.create_job_directory(tmp_path / "new/base", "job", "target") == job_folder
    assert directory.list_job_directories(tmp_path / "new/base") == [job_folder]


def _open(job_folder: Path) -> None:
    job_folder.chmod(0o750)


def _link(job_folder: Path) -> None:
    job_folder.rename(job_folder.with_name("away"))
    job_folder.symlink_to("away")


def _file(job_folder: Path) -> None:
    job_folder.rmdir()
    job_folder.touch()


def _foreign(job_folder: Path) -> None:
    os.chown(job_folder, OTHER, -1)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_open, "is open to other users (mode 0750, not 0700)"),
        (_link, "is a symbolic link, not a folder"),
        (_file, "is a file, not a folder"),
        pytest.param(_foreign, "belongs to user 4321, so another user could read", marks=ROOT),
    ],
)
def test_folder_that_others_can_change_is_refused(
    tmp_path: Path, change: Callable[[Path], None], fault: str
) -> None:
    job_folder = directory.create_job_directory(tmp_path, "job", "target")
    change(job_folder)
    with pytest.raises(InsecureMemoryError) as caught:
        directory.create_job_directory(tmp_path, "job", "target")
    assert str(caught.value).startswith(f"{job_folder} {fault}")
    assert "set GANGLINE_CHECKPOINT_MEMORY to" in str(caught.value)
    assert directory.list_job_directories(tmp_path) == []
    assert directory.remove_abandoned(tmp_path, 1e12) == []


def _link_file(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _writable(path: Path) -> None:
    path.chmod(0o620)


def _foreign_file(path: Path) -> None:
    os.chown(path, OTHER, -1)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_link_file, "is a symbolic link"),
        (_pipe, "is not a regular file"),
        (_writable, r"can be written by other users \(mode 0620\)"),
        pytest.param(_foreign_file, "belongs to user 4321", marks=ROOT),
    ],
)
def test_file_that_others_can_change_is_refused(
    tmp_path: Path, change: Callable[[Path], None], fault: str
) -> None:
    create_segment(tmp_path / "r00000-s0.seg", PAGE).close()
    FileLock(tmp_path / "job.lock").close()
    directory.write_settings(tmp_path, SaverSettings(target="t", job="j"))
    for name in ("r00000-s0.seg", "job.lock", "settings.json"):
        change(tmp_path / name)
    with pytest.raises(CorruptError, match=fault):
        Segment(tmp_path / "r00000-s0.seg")
    with pytest.raises(InsecureMemoryError, match=fault):
        FileLock(tmp_path / "job.lock")
    assert directory.read_settings(tmp_path) is None


def test_segment_replaces_a_link_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "r00000-s0.new").symlink_to("victim")
    create_segment(tmp_path / "r00000-s0.seg", PAGE).close()
    assert (tmp_path / "victim").read_text() == "kept"
    assert not (tmp_path / "r00000-s0.seg").is_symlink()
