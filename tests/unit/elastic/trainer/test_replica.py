"""What a successor of a rank continues: random states and leases of batches."""

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from gangline.elastic.data.client import LocalShardSource, ShardingClient, worker_name
from gangline.elastic.trainer.replica import SeatFile, random_state, set_random_state
from gangline.elastic.trainer.step_batches import StepRecords


def draw() -> tuple[float, ...]:
    return torch.rand(1).item(), random.random(), float(np.random.rand())


def test_random_state_of_a_seat_continues_in_another_process(tmp_path: Path) -> None:
    before = SeatFile(tmp_path / "seat")
    drawn = {}
    for step in (4, 5, 6):  # another rank may have the state of step 4 when this one ends step 6
        before.write(step, random_state())
        drawn[step] = draw()
    after = SeatFile(tmp_path / "seat")
    for step, expected in drawn.items():
        state = after.read(step)
        assert state is not None
        set_random_state(state)
        assert draw() == expected


def test_random_state_that_was_not_completely_written_is_not_used(tmp_path: Path) -> None:
    seat = SeatFile(tmp_path / "seat")
    seat.write(6, random_state())
    assert seat.read(8) is None
    path = tmp_path / "seat"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    assert SeatFile(path).read(6) is None


def a_client(source: LocalShardSource, worker: str) -> ShardingClient:
    return ShardingClient(
        "d", batch_size=2, dataset_size=8, num_minibatches_per_shard=2, source=source, worker=worker
    )


def test_a_batch_comes_again_until_its_step_counts() -> None:
    records = StepRecords(a_client(LocalShardSource(), "0/0"), None)
    assert [next(records), next(records)] == [[0, 1], [0, 1]]
    seen = []
    for batch in records:
        seen += batch
        records.advance()
    assert seen == [*range(8)]


def test_leases_of_a_rehearsal_and_of_a_lost_rank_go_to_others(tmp_path: Path) -> None:
    source = LocalShardSource()
    lost, successor = a_client(source, "0/1"), a_client(source, "0/slot-2")
    held, warm = StepRecords(lost, tmp_path), StepRecords(successor, tmp_path)
    held.take_over([0, 1], own=1)
    assert next(held) == [0, 1]
    assert next(warm) == [4, 5]
    warm.give_back()
    assert next(StepRecords(a_client(source, "0/0"), tmp_path)) == [4, 5]
    warm.take_over([0, 1], own=1)
    assert next(warm) == [0, 1]


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"GANGLINE_SURVIVOR_SLOT": "1"}, "3/1"),
        ({"GANGLINE_SURVIVOR_SLOT": "4", "GANGLINE_SUCCESSOR_AFTER": "2"}, "3/slot-4"),
    ],
)
def test_a_successor_has_leases_of_its_own(environment: Mapping[str, str], name: str) -> None:
    assert worker_name({"NODE_ID": "3", "LOCAL_RANK": "1", **environment}) == name
