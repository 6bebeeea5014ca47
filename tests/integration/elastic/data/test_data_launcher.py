"""Data shards with the launcher: workers find the master, and lost shards are reassigned."""

import asyncio
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("shard_script.py")


def read(folder: Path) -> dict[str, set[int]]:
    """Return the records that each worker of each attempt was given."""
    return {file.name: {int(one) for one in file.read_text().split()} for file in folder.iterdir()}


@pytest.mark.timeout(300)
async def test_all_records_are_worked_on_though_a_worker_dies(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gangline.elastic.launcher", "--standalone"),
        *("--nproc-per-node", "2", "--max-restarts", "2"),
        *(str(SCRIPT), str(tmp_path)),
    )
    try:
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    given = read(tmp_path)
    assert len(given["1-0"]) == 24
    assert set().union(*given.values()) == set(range(400))
    assert set(given) - {"0-0"} == {"1-0", "0-1", "1-1"}
