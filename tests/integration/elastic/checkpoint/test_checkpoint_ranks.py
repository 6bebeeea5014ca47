"""Several ranks: sharded states, other world sizes, a lost node, saves that not all ranks have."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def acts(play: Any, tmp_path: Path, memory: Path) -> Any:
    return lambda scene: play("rank_scenes.py", scene, str(tmp_path), str(memory))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one["values"] == other["values"]


@pytest.mark.timeout(300)
def test_sharded_training_continues_bit_by_bit_and_reshards(acts: Any) -> None:
    saved, again, three, one = acts("reshard")
    assert [act["source"] for act in again] == ["memory", "memory"]
    assert [act["losses"] for act in again] == [act["losses"] for act in saved]
    assert [act["source"] for act in [*three, *one]] == ["storage"] * 4
    assert all(same(act, again[0]) for act in [*again, *three, *one])
    assert all(act["beside"] for act in [*again, *three, *one]), "a step through PyTorch alone"


@pytest.mark.timeout(300)
def test_a_new_node_restores_from_the_memory_of_its_peer(acts: Any) -> None:
    copies, restored = acts("lost node")
    assert copies == [["copy-r00001.seg"], ["copy-r00000.seg"]]
    assert restored == [
        {"step": 7, "source": "memory", "right": True},
        {"step": 7, "source": "peer", "right": True},
    ]


@pytest.mark.timeout(300)
def test_a_folder_that_is_not_shared_is_an_error_on_all_ranks_and_nothing_is_written(
    acts: Any,
) -> None:
    for text, names in acts("apart"):
        assert "rank 1 on " in text
        assert "does not see what rank 0 on " in text
        assert names == []


@pytest.mark.timeout(300)
def test_a_node_without_memory_for_a_copy_restores_from_storage(acts: Any) -> None:
    restored = acts("no room")
    for act in restored:
        assert (act["step"], act["source"], act["right"]) == (7, "storage", True)
    assert any("emptyDir" in reason for reason in restored[1]["heard"])


@pytest.mark.timeout(300)
def test_a_step_with_a_killed_rank_is_skipped_for_the_previous_one(acts: Any) -> None:
    seen = acts("torn")
    killed, restored = seen[::2], seen[1::2]
    assert killed == [["returned", None]] * 3
    for act in (one for each in restored for one in each):
        assert (act["step"], act["source"], act["right"]) == (7, "memory", True)
        assert any("rank 1" in each for each in act["heard"])


@pytest.mark.timeout(300)
def test_values_that_differ_between_ranks_are_restored_on_their_own_rank(acts: Any) -> None:
    """Seeds and counters: as loaded in place, as loaded without a state, and by plain PyTorch."""
    two, three, one = acts("own values")
    zero, first, kept = [0, 100], [1, 101], [92, -1]
    assert two == [[zero, zero, zero], [first, first, zero]]
    assert three[:2] == two
    assert three[2] == [kept, zero, zero], "a new rank retains its own values"
    assert one == [[zero, zero, zero]]


@pytest.mark.timeout(300)
def test_diverged_shards_of_a_mesh_are_named_with_their_replicas(acts: Any) -> None:
    seen = acts("diverged in a mesh")
    for found, _ in seen:
        assert found[:2] == [[], []], "shards of different places differ, and are no replicas"
        assert found[2] == ["training.model.0.weight"]
        assert "training.model.0.weight" in found[3]
    (message,) = seen[0][1]
    assert "training.model.0.weight of ranks 3 differ from rank 1; " in message
    assert "at step 3" in message
    assert "equal at step 2" in message
    assert [heard for _, heard in seen[1:]] == [[], [], []]
