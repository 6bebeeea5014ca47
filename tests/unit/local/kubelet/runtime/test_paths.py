"""Mount points below a folder."""

from pathlib import Path

import pytest

from gangline.local.cleanup import list_mounts_below
from gangline.local.kubelet.runtime import paths


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    points = ("", "/a b", "/a b/c", "/a\\d", "/a\\d", "/ü\t")
    escaped = [
        point.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
        for point in points
    ]
    lines = [f"1 2 0:3 / {tmp_path}{point} rw - tmpfs none rw\n" for point in escaped]
    (tmp_path / "mountinfo").write_text("".join(lines))
    monkeypatch.setattr(paths, "_MOUNTINFO", tmp_path / "mountinfo")
    return tmp_path


def test_mounts_inside_another_mount_are_omitted(mounted: Path) -> None:
    expected = [f"{mounted}/a b", f"{mounted}/a\\d", f"{mounted}/ü\t"]
    assert paths.mounts_below(str(mounted)) == expected


def test_all_mounts_are_removed_innermost_first(mounted: Path) -> None:
    mounts = list_mounts_below(mounted)
    assert mounts[0] == mounted / "a b" / "c"
    assert mounts.count(mounted / "a\\d") == 2, "each of two stacked mounts is removed"
    assert mounted not in mounts
