"""A user who creates and deletes large objects leaves a small state file behind."""

import asyncio
from pathlib import Path

from integration.cluster.embedded import until
from security.conftest import AttackedServer

MAPS = "/api/v1/namespaces/default/configmaps"
COUNT, BYTES = 500, 500_000
BOUND = 150 << 20
"""Below the 250 MB of objects: up to 40 MiB of history and the states before it, the log of 32 MiB,
and 16 MiB that stay reserved.
"""


def file_bytes(data: Path) -> int:
    return sum(file.stat().st_size for file in data.glob("state.db*"))


async def test_state_file_shrinks_after_large_objects_are_deleted(
    attacked: AttackedServer,
) -> None:
    async def create(number: int) -> None:
        body = {"metadata": {"name": f"m{number}"}, "data": {"filler": "x" * BYTES}}
        status, answer = await attacked.request("POST", MAPS, json=body)
        assert status == 201, answer

    for start in range(0, COUNT, 10):
        await asyncio.gather(*(create(number) for number in range(start, start + 10)))
    assert file_bytes(attacked.data) > 220 << 20
    status, _ = await attacked.request("DELETE", MAPS)
    assert status == 200

    async def is_small() -> bool:
        return file_bytes(attacked.data) < BOUND

    await until(is_small, explain=lambda: file_bytes(attacked.data))
    status, listed = await attacked.request("GET", MAPS)
    assert (status, [item["metadata"]["name"] for item in listed["items"]]) == (200, [])
