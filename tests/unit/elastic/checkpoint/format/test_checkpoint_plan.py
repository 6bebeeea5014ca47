"""The plan of a save, and which tensors are replicas."""

from typing import Any

import pytest
import torch

from gangline.elastic.checkpoint.format import plan as plans
from gangline.elastic.checkpoint.format.plan import (
    ReplicaRanks,
    SavePlan,
    chunk_of,
    find_replica_sets,
)
from gangline.elastic.checkpoint.ranks import SaveGroup


@pytest.mark.parametrize(
    ("later", "is_same"),
    [
        pytest.param({"w": torch.ones(4), "n": 2, "s": "ab"}, True, id="other values"),
        pytest.param({"w": torch.ones(4), "n": 2, "s": "a" * 999}, False, id="an outgrown entry"),
        pytest.param({"w": torch.ones(5), "n": 1, "s": "a"}, False, id="another shape"),
        pytest.param({"w": torch.ones(4).half(), "n": 1, "s": "a"}, False, id="another type"),
        pytest.param({"w": torch.ones(4), "n": 1}, False, id="a missing name"),
    ],
)
def test_ranks_agree_again_when_the_structure_changes(later: dict[str, Any], is_same: bool) -> None:
    plan = SavePlan(SaveGroup(), "here")
    first = plan.fit({"w": torch.zeros(4), "n": 1, "s": "a"})
    second = plan.fit(later)
    assert (second.agreement is first.agreement) == is_same
    assert plan.agreement is second.agreement


def test_an_unchanged_simple_value_is_pickled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled: list[str] = []
    original = plans.pickle_value
    plan = SavePlan(SaveGroup(), "here")
    plan.fit({"n": 1, "l": {1, 2}})

    def count(key: str, value: object) -> bytes:
        pickled.append(key)
        return original(key, value)

    monkeypatch.setattr(plans, "pickle_value", count)
    plan.fit({"n": 1, "l": {1, 2}})
    assert pickled == ["l"], "sets may have changed inside"
    plan.fit({"n": True, "l": {1, 2}})
    assert "n" in pickled, "True equals 1, but is another type"


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
