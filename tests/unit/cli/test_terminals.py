"""Terminals that are narrow, have a limited encoding, or disable colours."""

import asyncio
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unit.cli.fake_api import FakeApi, pod_of_digits, serving

GANGLINE = (sys.executable, "-m", "gangline")
PLAIN = {"COLUMNS", "NO_COLOR", "PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL", "LC_CTYPE", "LANG"}
PATIENCE_S = 100


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[tuple[FakeApi, dict[str, str]]]:
    """A failed job whose reason and log are not in Latin letters, and a plain environment."""
    async with serving(tmp_path) as (api, kubeconfig):
        api.add_job({"type": "Failed", "status": "True", "message": "内存不足"})
        ended = {"terminated": {"exitCode": 1}}
        api.add_pod(pod_of_digits("master-0", phase="Failed", state=ended))
        api.logs["digits-master-0"] = "2026-01-01T00:00:00Z 损失 0.5\n"
        environment = {key: value for key, value in os.environ.items() if key not in PLAIN}
        yield api, environment | {"KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path)}


async def typed(environment: dict[str, str], *args: str) -> subprocess.CompletedProcess[bytes]:
    return await asyncio.to_thread(
        subprocess.run,
        [*GANGLINE, *args],
        env=environment,
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize(
    ("encoding", "line"),
    [
        ("gbk", "[master-0] 损失 0.5\n".encode("gbk")),
        ("latin-1", b"[master-0] \\u635f\\u5931 0.5\n"),
    ],
)
async def test_what_an_encoding_cannot_write_is_written_by_its_numbers_and_files_get_no_colours(
    world: tuple[FakeApi, dict[str, str]], encoding: str, line: bytes
) -> None:
    environment = world[1] | {"PYTHONIOENCODING": encoding}
    assert (await typed(environment, "logs", "digits", "--prefix")).stdout == line


def on_a_terminal(environment: dict[str, str], *args: str) -> bytes:
    """What a command writes to a terminal."""
    try:
        ours, theirs = pty.openpty()
    except OSError as error:
        pytest.skip(f"this user may open no terminal here: {error}")
    try:
        process = subprocess.Popen([*GANGLINE, *args], env=environment, stdout=theirs)
        assert process.wait(PATIENCE_S) == 0  # it writes less than a terminal takes in
        return os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)


async def test_colours_are_for_terminals_that_want_them(
    world: tuple[FakeApi, dict[str, str]],
) -> None:
    args, environment = ("logs", "digits", "--prefix"), world[1] | {"PYTHONIOENCODING": "utf-8"}
    coloured = await asyncio.to_thread(on_a_terminal, environment, *args)
    assert b"\x1b[36m[master-0]" in coloured
    plain = await asyncio.to_thread(on_a_terminal, environment | {"NO_COLOR": "1"}, *args)
    assert plain == "[master-0] 损失 0.5\r\n".encode()
