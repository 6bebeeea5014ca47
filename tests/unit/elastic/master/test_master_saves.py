"""Problems of saves, reported by any rank, appear in the job's metrics and summary."""

import msgspec
import pytest

from gangline.elastic.agent.account import Book
from gangline.elastic.master.core import Core
from gangline.elastic.master.inquiries import pace_of, summary_of
from gangline.elastic.master.metrics import page_of
from gangline.elastic.master.records import Record
from gangline.elastic.progress import Saves, SaveTeller, read
from gangline.elastic.protocol import messages as msg
from gangline.sdk.goodput import goodput


@pytest.fixture
def core() -> Core:
    """Of a world of two nodes."""
    core = Core()
    for node in (0, 1):
        join = msg.Join(
            node_id=node, incarnation=f"i{node}", number=1, node_rank=node,
            min_nodes=2, max_nodes=2, host=f"h{node}", store_port=1,
        )  # fmt: skip
        core.apply(Record(1000.0 + node, join, "c", 0))
    return core


def test_each_number_is_the_maximum_over_ranks(core: Core) -> None:
    core.beats[0] = msg.Heartbeat(node_id=0, saves=Saves(skipped=3, failed=1))
    core.beats[1] = msg.Heartbeat(node_id=1, saves=Saves(skipped=2, overtaken=5))
    core.beats[7] = msg.Heartbeat(node_id=7, saves=Saves(skipped=99))  # no member of this world
    assert pace_of(core).saves == Saves(3, 5, 1)
    page = page_of(core, 1010.0).decode()
    for line in ("skipped 3.0", "overtaken 5.0", "failed 1.0"):
        assert f"\ngangline_master_checkpoint_saves_{line}\n" in page
    account = goodput(summary_of(core, 1010.0) | {"step": "12", "stepsPerSecond": "2"})
    assert account is not None
    assert account.pace == "12, 2/s, of saves 3 skipped, 5 overtaken, 1 failed"


def test_summary_is_empty_without_problems(core: Core) -> None:
    core.beats[0] = msg.Heartbeat(node_id=0)
    assert pace_of(core).saves == Saves()
    account = goodput(summary_of(core, 1010.0) | {"step": "12", "stepsPerSecond": "2"})
    assert account is not None
    assert account.pace == "12, 2/s"


def test_checkpointer_counts_arrive_in_a_heartbeat(tmp_path) -> None:
    path = tmp_path / "progress"
    teller = SaveTeller({"GANGLINE_PROGRESS_FILE": str(path)})
    teller.holds(123_456_789_012)
    teller.waited(9_999_999.25)
    teller.became(Saves(123_456, 234_567, 345_678))
    told = read(path, tmp_path / "none")
    assert (told.saved_step, told.blocked_s) == (123_456_789_012, 9_999_999.25)
    teller.became(Saves(4, 0, 2))
    told = read(path, tmp_path / "none")
    assert told.saves == Saves(4, 0, 2)
    book = Book(1, 0, since=0.0, is_first=True, tells_steps=False)
    saves = book.report([told, read(tmp_path / "none", tmp_path / "none")], 9.0, None).saves
    beat = msg.Heartbeat(node_id=0, saves=saves)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(beat), type=msg.Heartbeat) == beat
    assert beat.saves == Saves(4, 0, 2)


def test_heartbeats_of_older_agents_have_no_saves() -> None:
    beat = msgspec.to_builtins(msg.Heartbeat(node_id=0))
    beat.pop("saves", None)
    assert msgspec.convert(beat, msg.Heartbeat).saves == Saves()
