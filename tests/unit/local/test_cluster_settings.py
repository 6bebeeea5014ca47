"""The settings of a cluster: durable by default, and recorded for backups."""

import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from gangline.local.apiserver.server import ApiServerSettings
from gangline.local.apiserver.storage.durable_files import Durability
from gangline.local.directory import ClusterDirectory, ClusterError
from gangline.local.settings import ClusterSettings, changed_settings


def test_writes_survive_a_power_failure_by_default() -> None:
    assert ClusterSettings().durability is Durability.DISK
    assert ApiServerSettings(data=Path("data")).durability is Durability.DISK


def test_recorded_settings_name_what_differs_from_the_defaults(tmp_path: Path) -> None:
    settings = ClusterSettings(name="two", nodes=3, image_map=Path("map"))
    changed = changed_settings(settings.encode())
    assert changed == ["nodes=3", f"image_map={Path.cwd() / 'map'}"]


def test_unreadable_settings_name_nothing() -> None:
    assert changed_settings(b"") == changed_settings(b"[]") == []


@pytest.mark.parametrize(
    ("blocks", "inodes", "files", "message"),
    [
        pytest.param(1 << 20, 10**6, 4096, "", id="enough"),
        pytest.param(1 << 20, 10**6, resource.RLIM_INFINITY, "", id="no limit"),
        pytest.param(10, 10**6, 4096, "has 0 MiB free, .*GANGLINE_HOME", id="full disk"),
        pytest.param(1 << 20, 5, 4096, "inodes for 5 more files", id="no inodes"),
        pytest.param(1 << 20, 10**6, 256, "at most 256 files may be .*limits.conf", id="files"),
    ],
)
def test_limits_that_are_too_low_are_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    blocks: int, inodes: int, files: int, message: str,
) -> None:  # fmt: skip
    disk = SimpleNamespace(f_bavail=blocks, f_frsize=4096, f_files=10**6, f_favail=inodes)
    monkeypatch.setattr("os.statvfs", lambda _: disk)
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, files))
    home = ClusterDirectory(tmp_path, "c")
    if not message:
        home.prepare()
        return
    with pytest.raises(ClusterError, match=message):
        home.prepare()
