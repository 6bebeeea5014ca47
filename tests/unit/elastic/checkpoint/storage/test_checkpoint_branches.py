"""Rollbacks in storage: which steps a new branch abandons, and what retention removes then."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from gangline.elastic.checkpoint.format.manifest import (
    branch_of,
    first_plan,
    next_branch,
    next_plan,
    step_folder,
)
from gangline.elastic.checkpoint.saver.messages import StorageOutcome
from gangline.elastic.checkpoint.saver.process import OBSOLETE_AFTER_S, Uploader
from gangline.elastic.checkpoint.snapshot import directory, inventory
from gangline.elastic.checkpoint.snapshot.directory import SaverSettings
from gangline.elastic.checkpoint.storage import commit
from gangline.elastic.checkpoint.storage.branches import (
    RECORD,
    BranchRecord,
    FirstLoad,
    encode_record,
    publish_record,
    read_record,
)
from gangline.elastic.checkpoint.storage.target import LocalTarget
from unit.elastic.checkpoint.checkpoint_states import write_part

A, B, C = (first_plan(letter * 16) for letter in "abc")


def abandoned(record: BranchRecord, steps: Mapping[int, str]) -> list[int]:
    """Return the abandoned ones of these steps and plans."""
    return [step for step, plan in steps.items() if record.abandons(step, plan)]


def begin(record: BranchRecord, plan: str, loaded: int, steps: Mapping[int, str]) -> BranchRecord:
    """Return the record of a branch of ``plan`` that continues from a step."""
    return record.begin_branch(branch_of(plan), (loaded, steps[loaded]), steps.items())


def test_plans_of_a_branch_are_ordered_and_share_their_branch() -> None:
    following = next_plan(A)
    assert branch_of(following) == branch_of(A)
    assert following > A
    assert branch_of(next_branch(A)) != branch_of(A)


def test_a_branch_abandons_newer_steps_of_others_and_none_of_its_own() -> None:
    steps = dict.fromkeys(range(1, 10), A)
    record = begin(BranchRecord(), B, 5, steps)
    steps |= dict.fromkeys((6, 7), B)
    assert abandoned(record, steps) == [8, 9]
    assert abandoned(record, {10: A, 10**6: next_plan(B)}) == [10], "also what is stored later"
    assert [record.may_abandon(step) for step in (5, 6, 9, 10)] == [False, True, True, False]


def test_an_abandoned_step_that_is_loaded_revives_its_branch_up_to_this_step() -> None:
    steps = dict.fromkeys(range(1, 10), A)
    record = begin(BranchRecord(), B, 5, steps)
    steps |= dict.fromkeys((6, 7), B)
    record = begin(record, C, 8, steps)
    assert abandoned(record, steps) == [6, 7, 9]


def test_a_second_rollback_keeps_the_first_and_forgets_branches_without_steps() -> None:
    steps = dict.fromkeys(range(1, 10), A)
    record = begin(BranchRecord(), B, 5, steps)
    steps |= dict.fromkeys(range(6, 9), B)
    later = begin(record, C, 7, steps)
    assert abandoned(later, steps) == [8, 9]
    assert later.number > record.number
    steps = dict.fromkeys(range(1, 6), A) | dict.fromkeys(range(6, 9), B)
    assert len(begin(record, C, 7, steps).abandoned) == 1


def test_the_record_with_the_higher_number_is_valid(tmp_path: Path) -> None:
    target = LocalTarget(str(tmp_path))
    assert read_record(target) == BranchRecord()
    first = begin(BranchRecord(), B, 1, {1: A, 2: A})
    second = first.begin_branch("c" * 16, (1, A), [], FirstLoad("run", 1))
    assert publish_record(target, second) == second
    assert publish_record(target, first) == second == read_record(target)
    (tmp_path / RECORD).write_bytes(b"{")
    assert publish_record(target, first) == first, "a damaged one counts as empty"


@pytest.mark.parametrize(
    ("keep", "keep_every", "left"), [(3, 0, [5, 6, 9]), (3, 8, [5, 6, 8, 9]), (0, 0, [5, 6, 8, 9])]
)
def test_retention_removes_abandoned_steps_first(
    keep: int, keep_every: int, left: list[int], rig: Any
) -> None:
    plans = {}
    for step in (5, 8, 9):
        rig.save({"w": torch.ones(5)}, step)
        rig.persist(step)
        plans[step] = rig.held(step).layout.plan
    rig.clear()
    rig.save({"w": torch.zeros(5)}, 6)
    plan = rig.held(6).layout.plan
    record = BranchRecord().begin_branch(branch_of(plan), (5, plans[5]), plans.items())
    publish_record(rig.target, record)
    rig.persist(6)
    result = commit.apply_retention(rig.target, keep, keep_every, 6, plan)
    assert commit.committed_steps(rig.target) == left
    assert result == commit.RetentionResult(6, [step for step in (8, 9) if step not in left])


def test_retention_leaves_newer_steps_of_a_training_that_was_not_loaded(rig: Any) -> None:
    for step in (7, 8, 9):
        rig.save({"w": torch.ones(5)}, step)
        rig.persist(step)
    for step in (1, 2, 3):
        rig.clear()
        rig.save({"w": torch.zeros(5)}, step)
        rig.persist(step)
        result = commit.apply_retention(rig.target, 2, 0, step, rig.held(step).layout.plan)
    assert commit.committed_steps(rig.target) == [2, 3, 7, 8, 9]
    assert result.newest == 9


def test_a_saver_publishes_a_branch_before_its_first_step_and_refuses_abandoned_ones(
    rig: Any,
) -> None:
    """A saver has written a step that was abandoned meanwhile, and a step of the new branch."""
    settings, outcomes = SaverSettings(target=str(rig.folder), job="job"), list[StorageOutcome]()
    saver = Uploader(rig.job_folder, outcomes.append)
    rig.save({"w": torch.ones(5)}, 9)
    old = rig.held(9)
    assert saver.write_snapshots(settings, [old])
    rig.clear()
    rig.save({"w": torch.zeros(5)}, 6)
    new = rig.held(6)
    record = BranchRecord().begin_branch(
        branch_of(new.layout.plan), (5, old.layout.plan), [(9, old.layout.plan)]
    )
    directory.write_file(rig.job_folder / RECORD, encode_record(record))
    try:
        saver.note_branches(settings)
        assert read_record(rig.target) == record
        assert saver.write_snapshots(settings, [new])
        assert saver.commit(settings) == [6]
    finally:
        saver.close()
    assert commit.committed_steps(rig.target) == [6]
    assert [one.name for one in rig.folder.iterdir() if one.name.startswith(".partial")] == []
    assert directory.read_stored_step(rig.job_folder) == (6, new.layout.plan)
    assert [(one.step, one.plan) for one in outcomes] == [(6, new.layout.plan)]


def test_a_delayed_step_is_reported_once_with_its_missing_parts(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 never writes: its parts are named, and a newer step takes the place of the older."""
    monkeypatch.setattr("gangline.elastic.checkpoint.saver.process.COMMIT_WAIT_S", -1.0)
    settings = SaverSettings(target=str(rig.folder), job="job", hosts=["a", "b"])
    outcomes = list[StorageOutcome]()
    saver = Uploader(rig.job_folder, outcomes.append)
    try:
        for step in (1, 2):
            rig.save({"w": torch.ones(5)}, step)
            assert saver.write_snapshots(settings, [rig.held(step)])
            saver.uncommitted[step, rig.held(step).layout.plan] = 2
        for _ in range(3):
            assert saver.commit(settings) == []
    finally:
        saver.close()
    assert [(one.step, one.reason) for one in outcomes] == [
        (step, "it lacks the part of rank 1 on b") for step in (2, 1)
    ]
    assert [step for step, _ in rig.target.list_unfinished()] == [2]


def test_unfinished_steps_of_ended_attempts_are_removed_and_others_are_not(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SaverSettings(target=str(rig.folder), job="job")
    for step in (1, 2, 3):
        rig.clear()
        rig.save({"w": torch.ones(5)}, step, for_storage=True)
        write_part(rig.target, rig.held(step))
    idle = {1: OBSOLETE_AFTER_S + 1, 2: OBSOLETE_AFTER_S - 1, 3: OBSOLETE_AFTER_S + 1}
    monkeypatch.setattr(LocalTarget, "idle_s", lambda _, name: idle[int(name.split("-")[1])])
    saver = Uploader(rig.job_folder, lambda _: None)
    try:
        assert saver.write_snapshots(settings, [rig.held(3)])
        assert [step for step, _ in rig.target.list_unfinished()] == [2, 3], "3 is in memory"
    finally:
        saver.close()


@pytest.mark.parametrize("name", ["gangline.json", ".metadata", "__0_0.distcp"])
def test_a_step_that_lacks_a_file_is_no_step(name: str, rig: Any) -> None:
    for step in (1, 2):
        rig.save({"w": torch.ones(5)}, step)
        rig.persist(step)
    (rig.folder / step_folder(2) / name).unlink()
    assert commit.list_steps(rig.target) == ([1], {2: name})


@pytest.mark.parametrize(("world", "steps"), [(1, [1]), (2, [])])
def test_an_older_save_is_not_written_after_a_newer_one_if_other_nodes_write_parts(
    world: int, steps: list[int], rig: Any
) -> None:
    for step in (1, 2):
        rig.save({"w": torch.ones(5)}, step)
    saver = Uploader(rig.job_folder, lambda _: None)
    assert saver.write_snapshots(SaverSettings(str(rig.folder), "job"), [rig.held(2)])
    saver.close()
    snapshots = [
        replace(one, layout=msgspec.structs.replace(one.layout, world=world))
        for one in inventory.list_snapshots(rig.job_folder)
    ]
    assert [one.step for one in inventory.storage_requests(snapshots)] == steps
