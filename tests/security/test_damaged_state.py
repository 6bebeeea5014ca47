"""A server that is started on a damaged state refuses, and replaces nothing."""

import asyncio
import os
import shutil
import sqlite3
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path

import pytest

from security.conftest import AttackedServer, attacked_server

MAPS = "/api/v1/namespaces/default/configmaps"


def corrupt_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = os.urandom(4096)
    path.write_bytes(data)


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(b"value-of-the-map")] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 8192 * 4096)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def replace_by_foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    connection.close()


async def fill(server: AttackedServer) -> None:
    for number in range(10):
        body = {
            "metadata": {"name": f"m{number}"},
            "data": {"a": "value-of-the-map", "filler": "x" * 9000},
        }
        status, _ = await server.request("POST", MAPS, json=body)
        assert status == 201


async def start_refused(data: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gangline.local.apiserver", "--data", str(data)), stderr=PIPE
    )
    async with asyncio.timeout(60):
        _, output = await process.communicate()
    assert process.returncode == 1
    return output.decode()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (corrupt_page, "is damaged"),
        (flip_bit, "checksum of revision"),
        (truncate, "is damaged"),
        (empty, "is damaged (it is empty)"),
        (replace_by_foreign, "is the database of another application"),
    ],
)
async def test_server_refuses_a_damaged_state_file(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    async with attacked_server(tmp_path) as server:
        await fill(server)
    state = tmp_path / "state.db"
    damage(state)
    before = state.read_bytes()
    refused = await start_refused(tmp_path)
    assert message in refused
    assert "Traceback" not in refused
    if damage is not flip_bit:  # which is found only when the rows are read
        assert state.read_bytes() == before
    assert state.stat().st_size == len(before)


async def test_server_refuses_a_state_file_whose_log_is_lost(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with attacked_server(data) as server:
        await fill(server)
        # As a careless backup copies a running cluster.
        shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*-wal"))
    for _ in range(2):
        refused = await start_refused(copy)
        assert "state.db-wal is missing" in refused
        assert "gangline restore" in refused
