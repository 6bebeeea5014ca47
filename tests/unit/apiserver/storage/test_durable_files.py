"""Files that appear complete or not at all."""

import errno
import os
from pathlib import Path

import pytest

from gangline.local.apiserver.storage.durable_files import publish_new, write_durably


def refuse_links(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("links", [True, False])
def test_new_file_replaces_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", refuse_links)
    path, first, second = tmp_path / "it", tmp_path / "first", tmp_path / "second"
    first.write_text("first")
    second.write_text("second")
    publish_new(first, path)
    with pytest.raises(FileExistsError):
        publish_new(second, path)
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_leftover_of_an_interrupted_write_does_not_set_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "token"
    leftover = tmp_path / "token.new"
    leftover.write_text("old")
    leftover.chmod(0o644)
    write_durably(path, b"token")
    assert path.read_bytes() == b"token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
