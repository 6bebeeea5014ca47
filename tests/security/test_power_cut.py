"""The power fails under a running API server: no acknowledged write may be lost.

The server's writes are recorded, and the disk is rebuilt as it would be after a power failure at
many points. With durability ``process`` the same test finds lost writes, so it can find them.
"""

import asyncio
import contextlib
import json
import os
import random
import shutil
import sqlite3
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from apiserver_process import start
from gangline.local.apiserver.storage.state_file import check_files
from security.power_cut import Disk, Operation, build_recorder, read_log

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="the recorder needs a C compiler"),
]

CLIENTS = 8
WRITES = 14
FILLER = "x" * 100_000
"""All writes together fill the write-ahead log, so that a checkpoint is among the cuts."""
MAPS = "/api/v1/namespaces/default/configmaps"


@dataclass(frozen=True)
class Acknowledged:
    """One answered write: the value that must be stored, None after a deletion."""

    name: str
    value: str | None
    log_size: int
    """The size of the log when the answer came: a cut at or after it must keep the write."""


@dataclass
class Recording:
    """The record of one run, and what its clients know."""

    root: Path
    operations: list[Operation]
    ready: int
    """The size of the log when the server reported that it serves."""
    answers: list[Acknowledged]


@contextlib.asynccontextmanager
async def session(data: Path) -> Any:
    """A client of the server in ``data``, not Gangline's own."""
    config = yaml.safe_load((data / "kubeconfig").read_text())
    token = config["users"][0]["user"]["token"]
    tls = ssl.create_default_context(cafile=str(data / "pki" / "ca.crt"))
    async with aiohttp.ClientSession(
        config["clusters"][0]["cluster"]["server"],
        connector=aiohttp.TCPConnector(ssl=tls),
        headers={"Authorization": f"Bearer {token}"},
        raise_for_status=True,
    ) as opened:
        yield opened


async def write(client: aiohttp.ClientSession, number: int, log: Path) -> list[Acknowledged]:
    """Create, change and delete ConfigMaps; return every answered write."""
    answers = []

    def answered(name: str, value: str | None) -> None:
        answers.append(Acknowledged(name, value, log.stat().st_size))

    for count in range(WRITES):
        name = f"map-{number}-{count}"
        body = {"metadata": {"name": name}, "data": {"value": "1", "filler": FILLER}}
        await client.post(MAPS, json=body)
        answered(name, "1")
        if count % 4 == 1:
            body["data"] = {"value": "2"}
            await client.put(f"{MAPS}/{name}", json=body)
            answered(name, "2")
        if count % 4 == 2:
            await client.delete(f"{MAPS}/{name}")
            answered(name, None)
    return answers


async def record(folder: Path, durability: str) -> Recording:
    """Run a server under the recorder with clients that write to it, and kill it."""
    root, log = folder / "data", folder / "record"
    library = build_recorder(folder)
    process = await start(
        root,
        "--durability",
        durability,
        env=os.environ
        | {"LD_PRELOAD": str(library), "RECORD_ROOT": str(root), "RECORD_LOG": str(log)},
    )
    ready = log.stat().st_size
    try:
        async with session(root) as client:
            tasks = (write(client, number, log) for number in range(CLIENTS))
            answers = [answer for found in await asyncio.gather(*tasks) for answer in found]
    finally:
        process.kill()
        await process.wait()
    return Recording(root, read_log(log), ready, answers)


def stored_values(folder: Path) -> dict[str, str]:
    """The value of every ConfigMap in a state file, which must be intact."""
    state = folder / "state.db"
    check_files(state)
    found: dict[str, str] = {}
    with contextlib.closing(sqlite3.connect(state)) as connection:
        connection.execute("PRAGMA synchronous=OFF")  # only this copy of the state is at stake
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = connection.execute(
            "SELECT key, type, body FROM log "
            "WHERE topic='configmaps.' AND key NOT LIKE 'kube-system/%' ORDER BY rv"
        )
        for key, type_, body in rows:
            found[key] = json.loads(body)["data"]["value"]
            if type_ == "DELETED":
                del found[key]
    return found


def lost_writes(recording: Recording, cut: int, stored: dict[str, str]) -> list[Acknowledged]:
    """The answered writes that a state lacks. A later write may replace an answered one."""
    history: dict[str, list[Acknowledged]] = {}
    for answer in recording.answers:
        history.setdefault(answer.name, []).append(answer)
    lost = []
    for name, answers in history.items():
        known = [answer for answer in answers if answer.log_size <= cut]
        if known:
            allowed = [answer.value for answer in answers[len(known) - 1 :]]
            if stored.get(f"default/{name}") not in allowed:
                lost.append(known[-1])
    return lost


def choose_cuts(recording: Recording, count: int, chance: random.Random) -> list[int]:
    """Cuts right after an answer, and between any two operations since the server was ready."""
    later = [operation.end for operation in recording.operations if operation.end > recording.ready]
    answered = [answer.log_size for answer in recording.answers]
    return sorted({*chance.sample(answered, count), *chance.sample(later, count), later[-1]})


async def test_every_acknowledged_write_survives_a_power_cut(tmp_path: Path) -> None:
    recording = await record(tmp_path, "disk")
    chance = random.Random(1)
    token = (recording.root / "pki" / "admin.token").read_text()
    kubeconfig = (recording.root / "kubeconfig").read_text()
    target = tmp_path / "after"
    for cut in choose_cuts(recording, 6, chance):
        disk = Disk(recording.operations, cut)
        for share in (0.0, 0.5):  # nothing that was not synced, and a random half of it
            disk.write_to(recording.root, target, lambda share=share: chance.random() < share)
            assert (target / "pki" / "admin.token").read_text() == token
            assert (target / "kubeconfig").read_text() == kubeconfig
            assert lost_writes(recording, cut, stored_values(target)) == [], (cut, share)
    # The last state, as a server serves it.
    disk.write_to(recording.root, target, lambda: False)
    process = await start(target)
    try:
        async with session(target) as client:
            maps = await (await client.get(MAPS)).json()
    finally:
        process.kill()
        await process.wait()
    served = {f"default/{m['metadata']['name']}": m["data"]["value"] for m in maps["items"]}
    assert lost_writes(recording, cut, served) == []
    assert len(served) > CLIENTS * WRITES // 2


async def test_power_cut_with_durability_process_loses_writes_but_no_integrity(
    tmp_path: Path,
) -> None:
    """The reason for ``disk``, and proof that the test above can fail."""
    recording = await record(tmp_path, "process")
    chance = random.Random(1)
    lost = []
    for cut in choose_cuts(recording, 3, chance):
        disk = Disk(recording.operations, cut)
        for share in (0.0, 0.5):
            disk.write_to(
                recording.root,
                tmp_path / "after",
                lambda share=share: chance.random() < share,
            )
            lost += lost_writes(recording, cut, stored_values(tmp_path / "after"))
    assert lost
