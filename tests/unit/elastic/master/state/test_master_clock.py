"""Goodput over many restarts of the master, with jumping wall clocks."""

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.elastic.master.main import downtime_s
from gangline.elastic.master.state import state as rec
from gangline.elastic.master.state.core import MasterCore
from gangline.elastic.master.state.state import (
    ClockReading,
    JobClock,
    MasterState,
    read_clocks,
)
from gangline.elastic.protocol.messages import GoodputReport, NodePhase

BEGIN = 1_800_000_000.0
_BOOT_S = {"one": 5_000.0, "two": 90.0}
"""Uptime of the machines at the start."""


class Histories:
    """A job, its machines, and a master that runs, records time, dies and restarts."""

    def __init__(self) -> None:
        self.passed_s = self.jumped_s = 0.0
        self.known_s = self.fresh_s = 0.0
        """What was run and written down, and what was run since."""
        self.machine, self.core, self.at = "one", MasterCore(), 0.0
        self.written = self.core.state.snapshot(0.0)
        self.come_back()

    @property
    def moment(self) -> ClockReading:
        """This moment, as the master's machine has it."""
        up_s = _BOOT_S.get(self.machine, 0.0) + self.passed_s
        boot = self.machine if self.machine in _BOOT_S else ""
        return ClockReading(BEGIN + self.jumped_s + self.passed_s, boot, up_s)

    def come_back(self) -> None:
        """Start a master from the journal; unwritten records are lost."""
        self.core, self.fresh_s = MasterCore(MasterState.from_snapshot(self.written)[0]), 0.0
        now = self.moment
        down_s = downtime_s(self.core.state.persistent, self.at, now)
        self.clock = JobClock(self.at or now.wall_s, lambda: self.passed_s)
        self.apply(rec.MasterStarted(master="m", down_s=down_s, moment=now))

    def apply(self, what: rec.RecordBody) -> None:
        self.at = self.clock.now()
        self.core.apply(rec.JournalRecord(self.at, what))
        self.written = self.core.state.snapshot(self.at)
        self.known_s, self.fresh_s = self.known_s + self.fresh_s, 0.0

    def run(self, seconds: float, phase: str) -> None:
        """Time passes in a phase, and is booked."""
        self.core.state.persistent.account.change_phase(self.clock.now(), phase)
        self.passed_s += seconds
        self.fresh_s += seconds
        self.core.state.persistent.account.change_phase(self.clock.now(), phase)

    def note(self) -> None:
        self.apply(
            rec.GoodputRecorded(account=self.core.state.persistent.account, moment=self.moment)
        )

    @property
    def goodput(self) -> GoodputReport:
        return self.core.state.persistent.account.goodput(self.clock.now())


_Step: TypeAlias = tuple[str, float, str]
_SECONDS = st.floats(0.001, 100_000)
_PHASES = st.sampled_from([NodePhase.TRAINING, NodePhase.WAITING, NodePhase.RESTARTING])
_RUN = st.tuples(st.just("run"), _SECONDS, _PHASES)
_NOTE = st.tuples(st.just("note"), st.just(0.0), st.just(""))
_JUMP = st.tuples(st.just("jump"), st.floats(-1e8, 1e8), st.just(""))
_AWAY = st.tuples(st.just("away"), _SECONDS, st.just("one"))
_MOVED = st.tuples(st.just("away"), _SECONDS, st.sampled_from(["one", "two", "nameless"]))


def played(steps: list[_Step]) -> Histories:
    history = Histories()
    for kind, seconds, word in steps:
        match kind:
            case "run":
                history.run(seconds, word)
            case "note":
                history.note()
            case "jump":
                history.jumped_s += seconds
            case _:
                history.passed_s += seconds
                history.machine = word
                history.come_back()
        parts = {**history.goodput.parts_s, "productive": history.goodput.productive_s}
        assert all(part_s >= 0 for part_s in parts.values())
    return history


@given(st.lists(_RUN | _NOTE | _JUMP | _AWAY, max_size=30))
def test_on_one_machine_wall_clocks_may_jump_and_the_account_is_right(steps: list[_Step]) -> None:
    history = played(steps)
    assert history.goodput.wall_s == pytest.approx(history.passed_s, abs=1e-3)


@given(st.lists(_RUN | _NOTE | _MOVED, max_size=30))
def test_on_several_machines_with_equal_wall_clocks_the_account_is_right(
    steps: list[_Step],
) -> None:
    history = played(steps)
    assert history.goodput.wall_s == pytest.approx(history.passed_s, abs=1e-3)


@given(st.lists(_RUN | _NOTE | _JUMP | _MOVED, max_size=30))
def test_a_clock_jump_between_machines_is_bounded_and_loses_no_booked_time(
    steps: list[_Step],
) -> None:
    history = played(steps)
    jumps_s = sum(abs(seconds) for kind, seconds, _ in steps if kind == "jump")
    lives = sum(kind == "away" for kind, *_ in steps)
    assert history.goodput.wall_s <= history.passed_s + lives * jumps_s + 1e-3
    assert history.goodput.wall_s >= history.known_s + history.fresh_s - 1e-3


def test_a_clock_jump_during_a_masters_run_is_no_absence() -> None:
    steps = [("run", 60.0, "training"), ("jump", 3600.0, ""), ("run", 30.0, "training")]
    moved = [*steps, ("note", 0.0, ""), ("away", 5.0, "two")]
    assert played(moved).core.state.persistent.down_s == pytest.approx(5.0)


def test_clock_readings_of_this_machine_increase() -> None:
    first, second = read_clocks(), read_clocks()
    assert first.boot == second.boot
    assert 0 <= first.seconds_until(second) < 60
    assert second.seconds_until(first) == 0
