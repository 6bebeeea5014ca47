"""Nodes that the master considers dead: never all of them, because then the master is cut off
itself.
"""

from dataclasses import dataclass, field

import pytest

from gangline.elastic.master import service as lives_module
from gangline.elastic.master.service import LivenessTracker


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
