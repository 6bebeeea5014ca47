"""Requested saves: all ranks agree on the step, reply, and wait until the request is withdrawn."""

import itertools
import threading
from pathlib import Path
from typing import TypeVar

import pytest

from gangline.elastic import save_request
from gangline.elastic.checkpoint import save_schedule
from gangline.elastic.checkpoint.ranks import SaveGroup
from gangline.elastic.checkpoint.save_schedule import RequestedSaves
from gangline.elastic.progress import PROGRESS_VARIABLE
from gangline.elastic.save_request import SaveOrder, SaveOrders

T = TypeVar("T")
ORDER = SaveOrder("first", 60.0)


class Ranks(SaveGroup):
    """One of several ranks; rank 0 leaves its broadcasts for the others."""

    def __init__(self, rank: int, sent: list[object], world: int = 2) -> None:
        self.rank, self.world, self.group, self.sent = rank, world, None, sent

    def broadcast(self, value: T) -> T:
        if self.rank == 0:
            self.sent.append(value)
            return value
        return self.sent.pop(0)  # type: ignore[return-value]


def orders(folder: Path) -> SaveOrders:
    folder.mkdir(exist_ok=True)
    return SaveOrders({PROGRESS_VARIABLE: str(folder / "progress")})


def progress(folder: Path) -> Path:
    return folder / "progress"


class Clock:
    """A monotonic clock that only tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(save_schedule, "time", clock)
    return clock


def test_without_an_agent_nothing_is_due_and_nothing_is_exchanged() -> None:
    sent: list[object] = []
    saves = RequestedSaves(Ranks(0, sent), SaveOrders({}))
    assert not any(saves.is_due(step) for step in range(100))
    assert not sent


def test_all_ranks_find_the_request_due_at_the_same_step(tmp_path: Path, clock: Clock) -> None:
    sent: list[object] = []
    first = RequestedSaves(Ranks(0, sent), orders(tmp_path / "0"))
    second = RequestedSaves(Ranks(1, sent), orders(tmp_path / "1"))
    due = []
    for step in range(1, 400):
        clock.now += 0.01
        if step == 150:
            save_request.write_order(progress(tmp_path / "0"), ORDER)
        answers = (first.is_due(step), second.is_due(step))
        assert answers[0] == answers[1]
        if answers[0]:
            due.append(step)
            assert first.answer(step, is_saved=True) == ORDER
            assert second.answer(step, is_saved=True) == ORDER
            break
    assert due
    assert 150 <= due[0] <= 350, "the next exchange is at most about two seconds away"


def test_ranks_exchange_about_once_a_second(tmp_path: Path, clock: Clock) -> None:
    sent: list[object] = []
    saves = RequestedSaves(Ranks(0, sent), orders(tmp_path))
    for step in range(1, 10_001):
        clock.now += 0.001
        saves.is_due(step)
    assert len(sent) < 30


def test_distance_between_exchanges_at_most_doubles(tmp_path: Path, clock: Clock) -> None:
    sent: list[object] = []
    saves = RequestedSaves(Ranks(0, sent), orders(tmp_path))
    for step in range(1, 2000):
        clock.now += 0.0001
        saves.is_due(step)
    planned = [exchange[1] for exchange in sent if isinstance(exchange, tuple)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(planned)]
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(gaps))
    assert max(gaps) > 100


def test_script_that_counts_steps_again_is_asked(tmp_path: Path, clock: Clock) -> None:
    saves = RequestedSaves(Ranks(0, []), orders(tmp_path))
    for step in range(1, 2000):
        clock.now += 0.0001
        saves.is_due(step)
    save_request.write_order(progress(tmp_path), ORDER)
    assert saves.is_due(1)


def test_single_rank_finds_the_request_at_its_next_step(tmp_path: Path) -> None:
    saves = RequestedSaves(Ranks(0, [], world=1), orders(tmp_path))
    assert not saves.is_due(1)
    save_request.write_order(progress(tmp_path), ORDER)
    assert saves.is_due(2)


def test_skipped_save_does_not_answer(tmp_path: Path) -> None:
    saves = RequestedSaves(Ranks(0, [], world=1), orders(tmp_path))
    save_request.write_order(progress(tmp_path), ORDER)
    assert saves.is_due(1)
    assert saves.answer(1, is_saved=False) is None
    assert saves.is_due(2), "the next step is asked for"


def test_script_that_saves_every_step_answers_without_due(tmp_path: Path) -> None:
    saves = RequestedSaves(Ranks(0, []), orders(tmp_path))
    assert saves.answer(1, is_saved=True) is None
    assert not save_request.takes_orders(progress(tmp_path))
    assert saves.answer(2, is_saved=True) is None
    assert save_request.takes_orders(progress(tmp_path))
    save_request.write_order(progress(tmp_path), ORDER)
    assert saves.answer(3, is_saved=True) == ORDER


def test_script_that_saves_rarely_without_due_does_not_announce_itself(tmp_path: Path) -> None:
    saves = RequestedSaves(Ranks(0, []), orders(tmp_path))
    save_request.write_order(progress(tmp_path), ORDER)
    assert [saves.answer(step, is_saved=True) for step in (10, 20, 30)] == [None] * 3
    assert not save_request.takes_orders(progress(tmp_path))


def test_reply_names_the_request_and_is_given_once(tmp_path: Path) -> None:
    end = orders(tmp_path)
    save_request.write_order(progress(tmp_path), ORDER)
    assert end.pending() == ORDER
    end.reply(ORDER, 7)
    assert end.pending() is None
    assert save_request.replied_step(progress(tmp_path), "first") == 7
    assert save_request.replied_step(progress(tmp_path), "second") is None


def test_process_waits_until_the_request_is_withdrawn(tmp_path: Path) -> None:
    end = orders(tmp_path)
    save_request.write_order(progress(tmp_path), ORDER)
    held = threading.Thread(target=end.hold, args=(ORDER,))
    held.start()
    held.join(0.05)
    assert held.is_alive()
    save_request.withdraw_order(progress(tmp_path))
    held.join(30)
    assert not held.is_alive()


def test_process_does_not_wait_longer_than_the_request_allows(tmp_path: Path) -> None:
    end, short = orders(tmp_path), SaveOrder("first", 0.0)
    save_request.write_order(progress(tmp_path), short)
    assert end.hold(short) < 30


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 1}', '{"id": "a", "hold_s": "soon"}'])
def test_unreadable_request_is_ignored(tmp_path: Path, text: str) -> None:
    end = orders(tmp_path)
    (tmp_path / "save-request").write_text(text)
    assert end.pending() is None
