"""Initializers that copy from a folder or a claim."""

import shutil
from pathlib import Path

import msgspec
import pytest

from gangline.initializer.download import fetch_source
from gangline.initializer.errors import InitializerError
from gangline.initializer.files import check_path, partial_folder, select_paths
from gangline.initializer.settings import InitializerSettings, read_settings
from gangline.initializer.sources.folder import FolderSource


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_text("a")
    (folder / "deep" / "b").write_text("b")
    return folder


def settings(output: Path, uri: str, **changes: Path) -> InitializerSettings:
    given = {"STORAGE_URI": uri, "OUTPUT_DIR": str(output)}
    return msgspec.structs.replace(read_settings("dataset", given), **changes)


def copied(output: Path) -> set[str]:
    files = (each for each in output.rglob("*") if each.is_file())
    names = {str(each.relative_to(output)) for each in files}
    return {name for name in names if not name.startswith(".gangline/")}


def fetch(given: InitializerSettings) -> None:
    fetch_source(given, lambda: FolderSource(given))


def test_folder_is_copied(source: Path, tmp_path: Path) -> None:
    fetch(settings(tmp_path / "out", f"file://{source}"))
    assert copied(tmp_path / "out") == {"a", "deep/b"}


def test_file_is_copied(source: Path, tmp_path: Path) -> None:
    fetch(settings(tmp_path / "out", f"file://{source}/deep/b"))
    assert copied(tmp_path / "out") == {"b"}


def test_folder_of_a_claim_is_copied(source: Path, tmp_path: Path) -> None:
    fetch(settings(tmp_path / "out", "pvc://claim/deep", claim_path=source))
    assert copied(tmp_path / "out") == {"b"}


def test_links_to_folders_are_followed_once(source: Path, tmp_path: Path) -> None:
    (source / "deep" / "up").symlink_to(source)
    fetch(settings(tmp_path / "out", f"file://{source}"))
    assert copied(tmp_path / "out") == {"a", "deep/b"}


def test_missing_folder_names_the_field(tmp_path: Path) -> None:
    with pytest.raises(InitializerError) as caught:
        fetch(settings(tmp_path / "out", f"file://{tmp_path}/nowhere"))
    assert caught.value.field == "spec.initializer.dataset.storageUri"


def test_another_source_replaces_the_mark(source: Path, tmp_path: Path) -> None:
    fetch(settings(tmp_path / "out", f"file://{source}/a"))
    fetch(settings(tmp_path / "out", f"file://{source}/deep"))
    assert copied(tmp_path / "out") == {"a", "b"}


def test_interrupted_copy_continues_with_other_files_and_changed_ones(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(tmp_path / "out", f"file://{source}")
    monkeypatch.setattr("gangline.initializer.download.write_mark", lambda *_: 1 / 0)
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)  # killed before it tidies up
    with pytest.raises(ZeroDivisionError):
        fetch(given)
    monkeypatch.undo()
    (source / "deep" / "b").write_text("c")
    copies: list[str] = []
    copyfile = shutil.copyfile
    monkeypatch.setattr("shutil.copyfile", lambda a, b: [copies.append(a.name), copyfile(a, b)])
    fetch(given)
    assert copies == ["b"]
    assert (tmp_path / "out" / "deep" / "b").read_text() == "c"
    assert not partial_folder(tmp_path / "out").exists()


def test_output_that_cannot_be_written_names_the_variable(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InitializerError) as caught:
        fetch(settings(tmp_path / "out", f"file://{source}"))
    assert caught.value.field == "OUTPUT_DIR"


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "a/..", "a\0b", ".gangline/lock", ""])
def test_path_that_leads_elsewhere(path: str) -> None:
    with pytest.raises(InitializerError):
        check_path(path, "field")


@pytest.mark.parametrize(
    ("ignored", "allowed", "expected"),
    [
        ([], [], ["a.bin", "deep/b.json", "deep/c.bin"]),
        (["*.bin"], [], ["deep/b.json"]),
        (["deep/"], [], ["a.bin"]),
        (["deep/c*"], ["*.bin"], ["a.bin"]),
    ],
)
def test_patterns(ignored: list[str], allowed: list[str], expected: list[str]) -> None:
    assert select_paths(["a.bin", "deep/b.json", "deep/c.bin"], ignored, allowed) == expected
