"""The settings of a cluster: durable by default, and recorded for backups."""

from pathlib import Path

from gangline.local.apiserver.server import ApiServerSettings
from gangline.local.apiserver.storage.durable_files import Durability
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
