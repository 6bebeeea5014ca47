"""Training that changes its world size equals training that does not, over real processes."""

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("trainer_process.py")


async def trained(phases: list[tuple[int, int]], folder: Path) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, str(SCRIPT), str(rank), str(port), json.dumps(phases), str(folder)),
            stdout=asyncio.subprocess.PIPE,
        )
        for rank in range(max(world for world, _ in phases))
    ]
    try:
        outputs = await asyncio.gather(*(process.communicate() for process in processes))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes)
    result: dict[str, Any] = json.loads(outputs[0][0])
    return result


async def test_one_two_three_two_one_processes_learn_what_one_process_learns(
    tmp_path: Path,
) -> None:
    (tmp_path / "steady").mkdir()
    steady = await trained([(1, 12)], tmp_path / "steady")
    changing = await trained([(1, 2), (2, 3), (3, 3), (2, 2), (1, 2)], tmp_path)
    assert changing["trainer"] == steady["trainer"]
    assert changing["trainer"]["num_steps"] == 12
    assert changing["weights"] == pytest.approx(steady["weights"], rel=1e-9, abs=1e-12)
