"""The master asks all members for a save, and answers once all of them have."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import pytest

from gangline.api.volcano.eviction_saves import (
    SAVE_ANSWER_ANNOTATION,
    SAVE_REQUEST_ANNOTATION,
    SAVES_ANNOTATION,
    SaveAnswerAnnotation,
    SaveRequestAnnotation,
    read_save_answer,
)
from gangline.elastic.master import service as lives_module
from gangline.elastic.master.facts.eviction_saves import EvictionSaveRequests, SaveRelay
from gangline.elastic.master.service import LivenessTracker
from gangline.elastic.master.state import state as rec
from gangline.elastic.master.state.core import MasterCore
from gangline.elastic.protocol import messages as msg

NOW = 1_000_000.0


class Rig:
    """A master with two members, and the commands that it has sent."""

    def __init__(self, members: int = 2) -> None:
        self.core = MasterCore()
        self.sent: list[msg.SendCommand] = []
        self.saves = EvictionSaveRequests(self.core, self.sent.append)
        for node in range(members):
            join = msg.Join(
                node_id=node, incarnation=f"i{node}", number=1, node_rank=node,
                min_nodes=members, max_nodes=members, host=f"h{node}", store_port=1,
            )  # fmt: skip
            self.core.apply(rec.JournalRecord(NOW, join, f"c{node}", 1))
        self.relay = SaveRelay(None, self.saves, lambda: NOW)  # type: ignore[arg-type]

    def finish(self, node: int, step: int | None, request: str = "first") -> None:
        self.saves.finished(msg.SaveFinished(node_id=node, request=request, step=step))

    def commands(self) -> list[tuple[str, bool]]:
        bodies = [command.what for command in self.sent]
        return [
            (body.request, body.is_withdrawn)
            for body in bodies
            if isinstance(body, msg.SaveCheckpoint)
        ]


def annotations(name: str, deadline: float = NOW + 30) -> dict[str, str]:
    request = SaveRequestAnnotation(
        id=name, seconds=30, deadline=datetime.fromtimestamp(deadline, UTC), beneficiary="d/high"
    )
    return {SAVE_REQUEST_ANNOTATION: msgspec.json.encode(request).decode()}


def test_all_members_are_asked_and_the_answer_is_the_lowest_step() -> None:
    rig = Rig()
    rig.saves.request("first", 30.0, "d/high")
    assert rig.sent[0].nodes == (0, 1)
    rig.finish(0, 8)
    assert rig.saves.answer is None
    rig.finish(1, 7)
    assert rig.saves.answer == SaveAnswerAnnotation(id="first", step=7)


def test_a_node_without_a_save_makes_the_answer_say_so() -> None:
    rig = Rig()
    rig.saves.request("first", 30.0, "d/high")
    rig.finish(0, None)
    rig.finish(1, 7)
    assert rig.saves.answer == SaveAnswerAnnotation(id="first", step=None)


def test_answers_to_other_requests_and_repeated_requests_are_ignored() -> None:
    rig = Rig()
    rig.saves.request("first", 30.0, "d/high")
    rig.saves.request("first", 30.0, "d/high")
    for node in (0, 1):
        rig.finish(node, 5, request="older")
    assert rig.saves.answer is None
    assert rig.commands() == [("first", False)]


def test_withdrawn_request_lets_the_workers_continue_and_is_not_answered() -> None:
    rig = Rig()
    rig.saves.request("first", 30.0, "d/high")
    rig.saves.withdraw()
    rig.saves.withdraw()
    for node in (0, 1):
        rig.finish(node, 5)
    assert rig.saves.answer is None
    assert rig.commands() == [("first", False), ("first", True)]


def test_job_without_workers_answers_at_once() -> None:
    rig = Rig(members=0)
    rig.saves.request("first", 30.0, "d/high")
    assert rig.saves.answer == SaveAnswerAnnotation(id="first", step=None)
    assert not rig.sent


def test_job_can_save_once_all_members_have_a_checkpoint() -> None:
    rig = Rig()
    rig.core.heartbeats[0] = msg.Heartbeat(node_id=0, checkpoint_step=3)
    assert not rig.saves.can_save
    assert rig.relay.desired() == {SAVES_ANNOTATION: None}
    rig.core.heartbeats[1] = msg.Heartbeat(node_id=1, checkpoint_step=3)
    assert rig.saves.can_save
    assert rig.relay.desired() == {SAVES_ANNOTATION: "true"}


def test_request_on_the_group_is_passed_on_and_withdrawn_with_it() -> None:
    rig = Rig()
    rig.relay.on_annotations({})
    rig.relay.on_annotations(annotations("first", deadline=NOW - 3600))
    rig.relay.on_annotations({})
    assert rig.commands() == [("first", False), ("first", True)], "clocks of nodes may differ"


def test_remainder_of_an_earlier_run_is_ignored_by_a_new_master() -> None:
    rig = Rig()
    for _ in range(2):
        rig.relay.on_annotations(annotations("old", deadline=NOW - 1))
    assert not rig.sent
    rig.relay.on_annotations(annotations("new"))
    assert rig.commands() == [("new", False)]


def test_master_restarted_during_a_request_repeats_it() -> None:
    rig = Rig()
    rig.relay.on_annotations(annotations("first"))
    assert rig.commands() == [("first", False)]


def test_answer_is_published_beside_the_announcement() -> None:
    rig = Rig(members=0)
    rig.saves.request("first", 30.0, "d/high")
    written = rig.relay.desired()[SAVE_ANSWER_ANNOTATION]
    assert written is not None
    assert read_save_answer({SAVE_ANSWER_ANNOTATION: written}) == SaveAnswerAnnotation(id="first")


@dataclass
class Watch:
    """A liveness tracker with a clock that the test sets."""

    monkeypatch: pytest.MonkeyPatch
    lost: list[int] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(lives_module, "_now", lambda: self.now)
        self.lives = LivenessTracker(15.0, 2.0, lambda node, _: self.lost.append(node))

    def heard(self, *nodes: int) -> None:
        for node in nodes:
            self.lives.mark_alive(node)

    def at(self, now: float) -> None:
        self.now = now
        self.lives.check()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def test_a_node_that_is_silent_alone_is_dead(watch: Watch) -> None:
    watch.heard(1, 2)
    watch.at(14)
    watch.heard(1)
    watch.at(16)
    assert watch.lost == [2]


def test_when_all_nodes_are_silent_none_is_reported(watch: Watch) -> None:
    watch.heard(1, 2)
    watch.at(100)
    watch.at(200)
    assert not watch.lost


def test_after_a_common_silence_all_timeouts_restart(watch: Watch) -> None:
    watch.heard(1, 2)
    watch.at(100)
    watch.heard(1)
    watch.at(101)
    watch.heard(1)
    watch.at(115)
    assert not watch.lost
    watch.heard(1)
    watch.at(117)
    assert watch.lost == [2]
