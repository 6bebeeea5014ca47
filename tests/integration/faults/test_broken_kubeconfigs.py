"""Broken kubeconfigs: exit status 5 and a message about the broken part."""

import asyncio
import copy
import socket
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


def plugin(command: str) -> Change:
    version = "client.authentication.k8s.io/v1"
    return as_user(exec={"apiVersion": version, "command": command, "interactiveMode": "Never"})


def at(server: str) -> Change:
    return lambda config: cluster_of(config).update(server=server)


def without_authority(config: Config) -> None:
    del cluster_of(config)["certificate-authority-data"]


def authority(text: str) -> Change:
    return lambda config: cluster_of(config).update({"certificate-authority-data": text})


CLOSED = "https://127.0.0.1:{closed}"
"""Where nobody listens; the port is bound during the test, so that nobody else can take it."""


BROKEN: dict[str, tuple[str | Change, str]] = {
    "empty": ("", "is empty"),
    "not YAML": ("a: [", "is not YAML"),
    "another file": ("<html>", "not a kubeconfig"),
    "wrong types": (lambda c: c.update(clusters="x"), "$.clusters"),
    "no context": (lambda c: c.pop("current-context"), "has no current-context"),
    "unknown context": (lambda c: c.update({"current-context": "nope"}), "no context 'nope'"),
    "unknown cluster": (lambda c: c.update(clusters=[]), "names the cluster"),
    "unknown user": (lambda c: c.update(users=[]), "names the user"),
    "no scheme": (at("127.0.0.1:6443"), "must start with https://"),
    "no address": (at("https://[::1"), "no address"),
    "no such port": (at("https://127.0.0.1:99999"), "no address"),
    "nobody listens": (at(CLOSED), "cannot be reached: Connection refused"),
    "authority not base64": (authority("@@"), "certificate-authority-data is not base64"),
    "authority not PEM": (authority("aGVsbG8="), "certificate-authority is not a PEM"),
    "no authority": (without_authority, "Check certificate-authority"),
    "half a certificate": (
        lambda c: c["users"][0]["user"].pop("client-key-data"),
        "no client-key: give both or neither",
    ),
    "a token of two lines": (as_user(token="a\nb"), "line breaks"),
    "a plugin that is missing": (plugin("no-such-plugin"), "'no-such-plugin' is not found"),
    "a plugin that fails": (plugin("false"), "'false' failed with exit code 1"),
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
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        for what, (change, says) in BROKEN.items():
            text = change
            if not isinstance(change, str):
                config = copy.deepcopy(sound)
                change(config)
                text = yaml.safe_dump(config)
            file.write_text(str(text).replace("{closed}", str(unused.getsockname()[1])))
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


async def test_a_kubeconfig_that_is_no_file(tmp_path: Path, listing: Listing) -> None:
    for path, says in (("none", "does not exist"), (".", "Is a directory")):
        code, message = await listing(tmp_path / path)
        assert (code, says in message) == (ExitCode.UNREACHABLE, True)
