"""Which ranks have replicas of the same tensors, or of the same parts of them."""

import torch

from gangline.elastic.checkpoint.format.plan import (
    ReplicaRanks,
    chunk_of,
    find_replica_sets,
)

WHOLE = ((4,), (0,))


def test_replicas_of_all_ranks_are_one_set() -> None:
    assert find_replica_sets([{"b": WHOLE, "a": WHOLE}] * 3) == [
        ReplicaRanks((0, 1, 2), ("a", "b"))
    ]


def test_shards_form_a_set_for_each_place() -> None:
    first, second = ((2,), (0,)), ((2,), (2,))
    by_rank = [{"a": shard, "norm": WHOLE} for shard in (first, second, first, second)]
    assert find_replica_sets(by_rank) == [
        ReplicaRanks((0, 1, 2, 3), ("norm",)),
        ReplicaRanks((0, 2), ("a",)),
        ReplicaRanks((1, 3), ("a",)),
    ]


def test_tensors_of_a_single_rank_or_of_other_sizes_have_no_replicas() -> None:
    assert find_replica_sets([{"a": WHOLE}, {"a": ((5,), (0,))}, {"b": WHOLE}]) == []


def test_plain_tensors_are_one_part_and_other_values_none() -> None:
    assert chunk_of(torch.zeros(2, 3)) == ((2, 3), (0, 0))
    assert chunk_of("text") is None
