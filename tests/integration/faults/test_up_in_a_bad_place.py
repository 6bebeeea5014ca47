"""``gangline up`` with an obstacle: a port in use, a bad flag, missing rights."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import gangline
from gangline.api.resources import EVENTS, PODS
from gangline.cli.errors import ExitCode
from gangline.kube.client.client import ApiClient
from gangline.kube.config.config import load_config
from gangline.local.directory import ClusterDirectory
from integration.cluster.embedded import until

NOBODY = 65534
SOURCES = Path(gangline.__file__).parents[1]


def up(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The output of a ``gangline up`` that fails to start."""
    return subprocess.run(
        [sys.executable, "-m", "gangline", "up", *arguments],
        env={**os.environ, "GANGLINE_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_port_in_use_is_reported_with_its_holder(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = up(tmp_path, "--port", str(port))
    assert done.returncode == ExitCode.UNEXPECTED
    assert f"port {port} is in use by" in done.stderr
    assert f"process {os.getpid()}" in done.stderr
    assert "--port 0" in done.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--memory", "4x"), "--memory 4x"),
        (("--cpus", "nan"), "'--cpus': nan is not a finite number"),
        (("--cpus", "-1"), "--cpus -1.0"),
        (("--name", "../x"), "cannot name a cluster"),
        (("--pod-cidr", "1.2.3"), "give one such as"),
        (("--port", "80000"), "--port"),
        (("--image-map", __file__), "image map"),
        (("--image-map", sys.executable), "not valid YAML"),
        (("--nodes", "0"), "--nodes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_flag_that_makes_no_sense_is_named(
    tmp_path: Path, flags: tuple[str, ...], says: str
) -> None:
    done = up(tmp_path, *flags)
    assert done.returncode in (ExitCode.USAGE, ExitCode.UNEXPECTED)
    assert says in done.stderr
    assert "defect" not in done.stderr
    assert "Cluster is up" not in done.stdout


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file where a folder should be")
    done = up(home)
    assert done.returncode == ExitCode.UNEXPECTED
    assert str(home) in done.stderr
    assert "defect" not in done.stderr
    assert "Cluster is up" not in done.stdout


@pytest.fixture
def open_home() -> Iterator[Path]:
    """A folder of an ordinary user; not pytest's, which only root may read."""
    home = Path(tempfile.mkdtemp())
    os.chown(home, NOBODY, NOBODY)
    home.chmod(0o755)
    try:
        yield home
    finally:
        shutil.rmtree(home)


def up_without_rights(home: Path, search: str) -> subprocess.Popen[bytes]:
    """Start a cluster as an ordinary user; it prints into ``up.log``."""
    identity = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    surroundings = {"GANGLINE_HOME": str(home), "HOME": str(home), "PYTHONPATH": str(SOURCES)}
    with (home / "up.log").open("wb") as output:
        return subprocess.Popen(
            ["setpriv", *identity, sys.executable, "-m", "gangline", "up", "--port", "0"],
            env={**os.environ, **surroundings, "PATH": search},
            stdout=output,
            stderr=output,
            cwd="/",
        )


def refusing_namespaces(folder: Path) -> str:
    """A search path with a program for namespaces that reports missing rights."""
    folder.mkdir()
    program = folder / "unshare"
    program.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become an ordinary user")
@pytest.mark.parametrize("namespaces", [True, False], ids=["allowed", "refused"])
async def test_without_rights_pods_run_and_the_missing_isolation_is_reported(
    open_home: Path, namespaces: bool
) -> None:
    search = os.environ["PATH"] if namespaces else refusing_namespaces(open_home / "bin")
    process = up_without_rights(open_home, search)
    log, home = open_home / "up.log", ClusterDirectory(open_home)
    try:

        async def answers() -> bool:
            assert process.poll() is None, log.read_text()
            return home.read_run_record() is not None and "Ctrl-C" in log.read_text()

        await until(answers, 40.0, log.read_text)
        async with ApiClient(load_config(str(home.default_kubeconfig))) as client:
            await _run_one_pod(client, log)
        expected = log.read_text()
        assert "Note: " in expected
        assert "root" in expected
        if not namespaces:
            assert (
                "no permission for namespaces (unshare failed: Operation not permitted)" in expected
            )
            assert "sysctl" in expected
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 20)


async def _run_one_pod(client: ApiClient, log: Path) -> None:
    container = {"name": "c", "image": "none:1", "command": ["id", "-u"]}
    spec = {"restartPolicy": "Never", "containers": [container]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}

    await client.create(PODS, body, "default")

    async def succeeded() -> bool:
        return (await client.get(PODS, "p", "default")).status.phase == "Succeeded"

    await until(succeeded, 30.0, log.read_text)
    messages = [event.message for event in (await client.list(EVENTS, "default")).items]
    assert any("none:1" in message for message in messages), messages
