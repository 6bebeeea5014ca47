"""Paths that must not lead out of a folder, with and without ``openat2``."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangline.local.kubelet.files import beneath
from gangline.local.kubelet.files.beneath import (
    make_beneath,
    open_beneath,
    opened_folder,
    real_path,
)
from gangline.local.kubelet.files.private import (
    give_to_group,
    make_private_folder,
    read_end_of_file,
)


@pytest.fixture(params=["openat2", "walk"])
def open_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to open a path: the second one is that of older kernels."""
    if request.param == "walk":
        monkeypatch.setattr(beneath, "open_beneath", beneath.walk_beneath)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[int]:
    """A folder with links inside, out, around, and in circles; ``outside`` is beside it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").write_text("outside")
    top = tmp_path / "top"
    (top / "a/b").mkdir(parents=True)
    (top / "a/b/file").write_text("inside")
    for name, target in {
        "inside": "a/b",
        "a/back": "../a/b",
        "out": "../outside",
        "absolute": str(tmp_path / "outside"),
        "absolute-inside": str(top / "a"),
        "loop": "loop",
        "around": "a/../../top/a",
        "dangling": "none",
    }.items():
        (top / name).symlink_to(target)
    os.mkfifo(top / "pipe")
    with opened_folder(top) as folder:
        yield folder


OPENERS: list[Callable[..., int]] = [open_beneath, beneath.walk_beneath]


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", "top"),
        ("a/b", "top/a/b"),
        ("a//./b/", "top/a/b"),
        ("a/../a/b", "top/a/b"),
        ("inside/file", "top/a/b/file"),
        ("a/back", "top/a/b"),
        ("pipe", "top/pipe"),
    ],
)
def test_paths_inside_are_opened(
    tree: int, tmp_path: Path, opener: Callable[..., int], path: str, expected: str
) -> None:
    descriptor = opener(tree, path)
    assert real_path(descriptor) == str(tmp_path / expected)
    os.close(descriptor)


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("..", errno.EXDEV),
        ("a/../../outside", errno.EXDEV),
        ("/etc", errno.EXDEV),
        ("out", errno.EXDEV),
        ("out/file", errno.EXDEV),
        ("absolute/file", errno.EXDEV),
        ("absolute-inside", errno.EXDEV),
        ("around/b", errno.EXDEV),
        ("loop", errno.ELOOP),
        ("dangling", errno.ENOENT),
        ("a/b/file/x", errno.ENOTDIR),
    ],
)
def test_paths_that_lead_out_are_refused(
    tree: int, opener: Callable[..., int], path: str, code: int
) -> None:
    with pytest.raises(OSError, match=r".") as caught:
        opener(tree, path)
    assert caught.value.errno == code


@pytest.mark.parametrize("opener", OPENERS)
def test_links_are_refused_on_request(tree: int, opener: Callable[..., int]) -> None:
    for path in ("inside", "inside/file", "dangling"):
        with pytest.raises(OSError, match=r".") as caught:
            opener(tree, path, follow_links=False)
        assert caught.value.errno == errno.ELOOP


@pytest.mark.usefixtures("open_path")
def test_missing_folders_are_made_with_the_mode(tree: int, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        os.close(make_beneath(tree, "inside/new/deep", 0o777))
        os.close(make_beneath(tree, "a/made/file", 0o755, is_folder=False))
    finally:
        os.umask(before)
    for made in ("a/b/new", "a/b/new/deep"):
        assert (tmp_path / "top" / made).stat().st_mode & 0o777 == 0o777
    assert (tmp_path / "top/a/made/file").is_file()


@pytest.mark.usefixtures("open_path")
@pytest.mark.parametrize(
    "path", ["../x", "/x", "out/x", "absolute/x", "out/x/y", "around/x", "dangling", "dangling/x"]
)
def test_nothing_is_made_outside(tree: int, tmp_path: Path, path: str) -> None:
    before = sorted(os.listdir(tmp_path / "top"))
    for is_folder in (True, False):
        with pytest.raises(OSError, match=r"."):
            make_beneath(tree, path, 0o755, is_folder=is_folder)
    assert os.listdir(tmp_path / "outside") == ["file"]
    assert sorted(os.listdir(tmp_path)) == ["outside", "top"]
    assert sorted(os.listdir(tmp_path / "top")) == before


def test_open_does_not_leak_descriptors(tree: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for opener in OPENERS:
        for path in ("inside/file", "out", "loop", "none/x"):
            try:
                os.close(opener(tree, path))
            except OSError:
                continue
    os.close(make_beneath(tree, "x/y/z", 0o755))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_private_folder_is_closed_and_must_be_ones_own(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    for name in ("open", "new/inner"):
        assert make_private_folder(tmp_path / name).stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to("open")
    with pytest.raises(OSError, match="Not a directory"):
        make_private_folder(tmp_path / "link")
    if os.geteuid() == 0:
        os.chown(tmp_path / "open", 4321, -1)
        with pytest.raises(PermissionError, match="belongs to user 4321"):
            make_private_folder(tmp_path / "open")


def test_only_the_end_of_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5000 + b"end")
    assert read_end_of_file(tmp_path / "file", 4096) == b"x" * 4093 + b"end"
    assert read_end_of_file(tmp_path / "file", 9999)[-4:] == b"xend"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("file")
    for name in ("pipe", "link", "."):
        with pytest.raises(OSError, match=r"."):
            read_end_of_file(tmp_path / name, 10)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to a group")
def test_links_are_not_given_to_the_group(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/file").touch(0o600)
    volume = tmp_path / "volume"
    (volume / "sub").mkdir(parents=True)
    (volume / "sub/file").touch(0o600)
    os.mkfifo(volume / "pipe", 0o600)
    (volume / "link").symlink_to("../outside")
    (volume / "sub/link").symlink_to("../../outside/file")
    give_to_group(volume, 4321)
    modes = {
        name: (status.st_gid, status.st_mode & 0o7777)
        for name in ("volume/sub", "volume/sub/file", "volume/pipe", "outside", "outside/file")
        for status in [(tmp_path / name).stat()]
    }
    assert modes == {
        "volume/sub": (4321, 0o2775),
        "volume/sub/file": (4321, 0o660),
        "volume/pipe": (4321, 0o660),
        "outside": (0, 0o755),
        "outside/file": (0, 0o600),
    }
