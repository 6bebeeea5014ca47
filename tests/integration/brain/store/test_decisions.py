"""Advice and actions: what is current, one action at a time, and only by the leader (G4)."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import msgspec
import pytest

from brain_records import NOW_MS, a_job, a_running_job
from gangline.brain.advisers.advice import (
    ActionRecord,
    Advice,
    AdviceRecord,
    AdviceState,
    Reason,
    What,
)
from gangline.brain.store.engine import Store
from gangline.brain.store.errors import ActionOpen, Fenced, UnknownJob
from gangline.brain.store.reader import HistoryFilter
from integration.brain.store.conftest import stored_advice, write_advice

JOB = a_running_job(1)
ACTION = ActionRecord(cluster="cluster", uid="uid-1", what="workers", at_ms=NOW_MS, body='{"a":1}')


def advised(what: What, value: float, **changes: object) -> AdviceRecord:
    advice = Advice(what=what, value=value, reason=Reason(code="Any", arguments={"n": value}))
    fields = {"at_ms": NOW_MS, "expires_ms": NOW_MS + 1000} | changes
    return msgspec.convert(
        {"cluster": "cluster", "uid": "uid-1", "advice": msgspec.to_builtins(advice)} | fields,
        AdviceRecord,
    )


@pytest.fixture
def fence(store: Store) -> int:
    store.write.facts([JOB])
    return store.write.lead("cluster", "brain-0")


def test_advice_that_is_repeated_keeps_its_id_and_time(store: Store, fence: int) -> None:
    memory, workers = advised(What.MEMORY, 1e9), advised(What.WORKERS, 4.0)
    first = write_advice(store, "uid-1", [memory, workers], fence=fence)
    assert stored_advice(store, "uid-1") == first
    later = advised(What.MEMORY, 1e9, at_ms=NOW_MS + 9, state="held", held_because="CoolDown")
    [held] = write_advice(store, "uid-1", [later], fence=fence)
    assert (held.id, held.at_ms, held.state) == (first[0].id, NOW_MS, AdviceState.HELD)
    assert stored_advice(store, "uid-1") == [held]
    states = {each.id: each.state for each in stored_advice(store, "uid-1", current=False)}
    assert states[first[1].id] is AdviceState.SUPERSEDED


def test_other_number_for_the_same_field_supersedes(store: Store, fence: int) -> None:
    [old] = write_advice(store, "uid-1", [advised(What.MEMORY, 1e9)], fence=fence)
    [new] = write_advice(store, "uid-1", [advised(What.MEMORY, 2e9)], fence=fence)
    assert new.id != old.id
    assert stored_advice(store, "uid-1") == [new]


def test_advice_whose_prediction_moves_a_little_is_repeated(store: Store, fence: int) -> None:
    first = advised(What.CHECKPOINT_INTERVAL, 600.0)
    [old] = write_advice(store, "uid-1", [first], fence=fence)
    nearly = msgspec.structs.replace(
        first.advice, value=603.0, gain=0.12, reason=Reason(code="Any", arguments={"n": 603.0})
    )
    [same] = write_advice(
        store, "uid-1", [msgspec.structs.replace(first, advice=nearly)], fence=fence
    )
    assert same.id == old.id
    other = msgspec.structs.replace(first, advice=msgspec.structs.replace(nearly, value=612.0))
    [new] = write_advice(store, "uid-1", [other], fence=fence)
    assert new.id != old.id
    assert len(stored_advice(store, "uid-1", current=False)) == 2


def test_advice_of_several_jobs_is_that_of_each(store: Store, fence: int) -> None:
    """In one transaction, with the rules of one job; a job that is not stored is left out."""
    store.write.facts([a_running_job(2), a_running_job(3)])
    memory, workers = advised(What.MEMORY, 1e9), advised(What.WORKERS, 4.0)
    first = store.write.advice_of_jobs(
        "cluster",
        {"uid-1": [memory, workers], "uid-2": [memory], "uid-9": [memory], "uid-3": []},
        fence=fence,
    )
    assert list(first) == ["uid-1", "uid-2", "uid-3"]
    assert first["uid-3"] == []
    assert len({each.id for given in first.values() for each in given}) == 3
    later = advised(What.MEMORY, 1e9, at_ms=NOW_MS + 9, expires_ms=NOW_MS + 2000, state="held")
    other = advised(What.MEMORY, 2e9)
    second = store.write.advice_of_jobs(
        "cluster", {"uid-1": [later], "uid-2": [other]}, fence=fence
    )
    [repeated], [new] = second["uid-1"], second["uid-2"]
    assert (repeated.id, repeated.at_ms) == (first["uid-1"][0].id, NOW_MS)
    assert (repeated.expires_ms, repeated.state) == (NOW_MS + 2000, AdviceState.HELD)
    assert new.id != first["uid-2"][0].id
    assert stored_advice(store, "uid-1") == [repeated]
    assert [each.id for each in stored_advice(store, "uid-2")] == [new.id]
    # Jobs that were not named keep theirs.
    store.write.advice_of_jobs("cluster", {"uid-1": []}, fence=fence)
    assert stored_advice(store, "uid-1") == []
    assert [each.id for each in stored_advice(store, "uid-2")] == [new.id]
    with pytest.raises(Fenced):
        store.write.advice_of_jobs("cluster", {"uid-2": []}, fence=fence - 1)


def test_the_newest_actions_are_the_recent_ones(store: Store, fence: int) -> None:
    store.write.facts([a_running_job(n) for n in range(2, 7)])
    for n in range(1, 7):
        action = msgspec.structs.replace(ACTION, uid=f"uid-{n}", at_ms=NOW_MS + n)
        store.write.begin_action(action, fence=fence)
    found = store.read.recent_actions("cluster", NOW_MS + 2, limit=3)
    assert [each.uid for each in found] == ["uid-4", "uid-5", "uid-6"]


def test_advice_expires(store: Store, fence: int) -> None:
    write_advice(store, "uid-1", [advised(What.MEMORY, 1e9)], fence=fence)
    assert store.write.expire_advice("cluster", NOW_MS, fence=fence) == 0
    assert store.write.expire_advice("cluster", NOW_MS + 1000, fence=fence) == 1
    assert stored_advice(store, "uid-1") == []


def test_action_is_open_until_its_verdict(store: Store, fence: int) -> None:
    [advice] = write_advice(store, "uid-1", [advised(What.WORKERS, 4.0)], fence=fence)
    begun = store.write.begin_action(
        msgspec.structs.replace(ACTION, advice_id=advice.id), fence=fence
    )
    assert begun.plan == f"{JOB.name}-brain-{begun.id}"
    assert store.read.open_actions("cluster") == [begun]
    assert stored_advice(store, "uid-1") == []  # applied
    with pytest.raises(ActionOpen) as error:
        store.write.begin_action(ACTION, fence=fence)
    assert error.value.action == begun
    judged = msgspec.structs.replace(begun, verdict="kept", judged_ms=NOW_MS + 5, cost_ms=7)
    store.write.update_action(judged, fence=fence)
    assert store.read.open_actions("cluster") == []
    assert store.read.actions("cluster", "uid-1") == [judged]
    assert store.read.recent_actions("cluster", NOW_MS) == [judged]
    store.write.begin_action(ACTION, fence=fence)


def test_job_that_is_not_stored_gets_neither_advice_nor_actions(store: Store, fence: int) -> None:
    unknown = {"uid-9": [advised(What.MEMORY, 1.0)]}
    assert store.write.advice_of_jobs("cluster", unknown, fence=fence) == {}
    with pytest.raises(UnknownJob, match="job uid-9 of cluster 'cluster' is not stored"):
        store.write.begin_action(msgspec.structs.replace(ACTION, uid="uid-9"), fence=fence)


def test_former_leader_is_fenced(store: Store, fence: int) -> None:
    store.write.lead("another", "brain-1")  # another cluster has another leader
    open_action = store.write.begin_action(ACTION, fence=fence)
    newer = store.write.lead("cluster", "brain-1")
    assert newer == fence + 1
    writes = [
        lambda: store.write.begin_action(ACTION, fence=fence),
        lambda: store.write.update_action(open_action, fence=fence),
        lambda: write_advice(store, "uid-1", [], fence=fence),
        lambda: store.write.expire_advice("cluster", NOW_MS, fence=fence),
        lambda: store.write.advice_state("cluster", [1], AdviceState.REFUSED, fence=fence),
    ]
    for write in writes:
        with pytest.raises(Fenced, match="its fencing number is 2, mine 1"):
            write()
    store.write.update_action(open_action, fence=newer)


FROZEN = """
import sys
from brain_records import NOW_MS
from gangline.brain.advisers.advice import ActionRecord
from gangline.brain.store.engine import open_store
from gangline.brain.store.errors import ActionOpen, Fenced

store = open_store(sys.argv[1], secret=b"a secret of the tests")
fence = store.write.lead("cluster", "frozen")
print("leads", flush=True)
sys.stdin.readline()  # frozen and thawed here
action = ActionRecord(cluster="cluster", uid="uid-1", what="workers", at_ms=NOW_MS)
try:
    print("acted", store.write.begin_action(action, fence=fence).id)
except (ActionOpen, Fenced) as error:
    print(type(error).__name__)
"""


@contextlib.contextmanager
def brain(program: str, address: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", program, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": "tests:."},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_leader_that_was_frozen_does_not_act_when_it_is_thawed(store: Store, address: str) -> None:
    store.write.facts([JOB])
    with brain(FROZEN, address) as frozen:
        assert frozen.stdout is not None
        assert frozen.stdin is not None
        assert frozen.stdout.readline() == "leads\n"
        frozen.send_signal(signal.SIGSTOP)
        begun = store.write.begin_action(ACTION, fence=store.write.lead("cluster", "brain-1"))
        frozen.send_signal(signal.SIGCONT)
        frozen.stdin.write("\n")
        frozen.stdin.flush()
        assert frozen.stdout.read() == "Fenced\n"
    assert store.read.actions("cluster", "uid-1") == [begun]


def test_of_two_that_act_at_the_same_time_one_does(store: Store, fence: int) -> None:
    outcomes: list[str] = []

    def act() -> None:
        try:
            store.write.begin_action(ACTION, fence=fence)
            outcomes.append("acted")
        except ActionOpen:
            outcomes.append("open")

    threads = [threading.Thread(target=act) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["acted", "open", "open", "open"]


def test_two_reporters_of_one_job_lose_nothing(store: Store) -> None:
    errors: list[BaseException] = []

    def report(first: int) -> None:
        try:
            for number in range(first, 60, 2):
                store.write.facts([a_running_job(1, observed_ms=number, restarts=number)])
                store.write.facts([a_job(100 + number)])
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=report, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    stored = store.read.run("cluster", "uid-1")
    assert stored is not None
    assert (stored.job.restarts, stored.job.observed_ms) == (59, 59)
    assert len(store.read.history(HistoryFilter(cluster="cluster")).jobs) == 60
