"""Broken kubeconfigs: exit status 5 and a message about the broken part."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gangline.cli import main
from gangline.cli.errors import ExitCode
from gangline.local.apiserver.server import ApiServer

Config = dict[str, Any]
Change = Callable[[Config], object]


def cluster_of(config: Config) -> Any:
    return config["clusters"][0]["cluster"]


def as_user(**user: Any) -> Change:
    return lambda config: config["users"][0].update(user=user)


def at(server: str) -> Change:
    return lambda config: cluster_of(config).update(server=server)


def without_authority(config: Config) -> None:
    del cluster_of(config)["certificate-authority-data"]


BROKEN: dict[str, tuple[Change, str]] = {
    "no address": (at("https://[::1"), "no address"),
    "no such port": (at("https://127.0.0.1:99999"), "no address"),
    "no authority": (without_authority, "Check certificate-authority"),
    "a token of two lines": (as_user(token="a\nb"), "line breaks"),
}


Listing = Callable[[Path], Awaitable[tuple[int, str]]]


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Listing:
    """Runs ``gangline list`` with a kubeconfig; returns its exit code and its errors."""
    monkeypatch.delenv("KUBECONFIG", raising=False)

    async def run(kubeconfig: Path) -> tuple[int, str]:
        code = await asyncio.to_thread(main.run, ["list", "--kubeconfig", str(kubeconfig)])
        return code, capsys.readouterr().err

    return run


async def test_each_usual_break_is_named(
    api_server: ApiServer, tmp_path: Path, listing: Listing
) -> None:
    sound = yaml.safe_load(api_server.kubeconfig.read_text())
    file = tmp_path / "kubeconfig"
    for what, (change, says) in BROKEN.items():
        config = copy.deepcopy(sound)
        change(config)
        file.write_text(yaml.safe_dump(config))
        code, message = await listing(file)
        assert code == ExitCode.UNREACHABLE, (what, message)
        assert says in message, what


async def test_wrong_token_is_distinguished_from_an_unreachable_cluster(
    api_server: ApiServer, tmp_path: Path, listing: Listing
) -> None:
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    as_user(token="wrong")(config)
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    code, message = await listing(file)
    assert (code, "credentials" in message) == (ExitCode.UNEXPECTED, True)
