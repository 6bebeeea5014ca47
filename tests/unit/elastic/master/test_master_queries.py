"""Problems of saves, reported by any rank, appear in the job's metrics and summary."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from gangline.elastic.agent.progress_report import ProgressTracker
from gangline.elastic.master.queries import (
    CheckpointAge,
    metrics_page,
    state_summary,
    world_progress,
)
from gangline.elastic.master.state.core import MasterCore
from gangline.elastic.master.state.state import JournalRecord
from gangline.elastic.progress import NodePhase, SaveCounts, SaveReporter, read_progress
from gangline.elastic.protocol import messages as msg
from gangline.sdk.goodput import Goodput, parse_goodput
from gangline.sdk.restarts import LastRestart

TIME = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def core() -> MasterCore:
    """Of a world of two nodes."""
    core = MasterCore()
    for node in (0, 1):
        join = msg.Join(
            node_id=node, incarnation=f"i{node}", number=1, node_rank=node,
            min_nodes=2, max_nodes=2, host=f"h{node}", store_port=1,
        )  # fmt: skip
        core.apply(JournalRecord(1000.0 + node, join, "c", 0))
    return core


def summary(core: MasterCore, checkpoints: CheckpointAge | None = None) -> dict[str, str]:
    return state_summary(core, 1010.0, checkpoints or CheckpointAge(), TIME)


def test_each_number_is_the_maximum_over_ranks(core: MasterCore) -> None:
    core.heartbeats[0] = msg.Heartbeat(node_id=0, saves=SaveCounts(skipped=3, failed=1))
    core.heartbeats[1] = msg.Heartbeat(node_id=1, saves=SaveCounts(skipped=2, overtaken=5))
    core.heartbeats[7] = msg.Heartbeat(
        node_id=7, saves=SaveCounts(skipped=99)
    )  # no member of this world
    assert world_progress(core).saves == SaveCounts(3, 5, 1)
    page = metrics_page(core, 1010.0).decode()
    for line in ("skipped 3.0", "overtaken 5.0", "failed 1.0"):
        assert f"\ngangline_master_checkpoint_saves_{line}\n" in page
    account = parse_goodput(summary(core) | {"step": "12", "stepsPerSecond": "2"})
    assert account is not None
    assert account.progress == "12, 2/s, of saves 3 skipped, 5 overtaken, 1 failed"


def test_summary_is_empty_without_problems(core: MasterCore) -> None:
    core.heartbeats[0] = msg.Heartbeat(node_id=0)
    assert world_progress(core).saves == SaveCounts()
    account = parse_goodput(summary(core) | {"step": "12", "stepsPerSecond": "2"})
    assert account is not None
    assert account.progress == "12, 2/s"


def test_warm_nodes_are_counted_where_nodes_report_them(core: MasterCore) -> None:
    core.heartbeats[0] = msg.Heartbeat(node_id=0, resources=msg.NodeResources(1.0, 5))
    account = parse_goodput(summary(core))
    assert account is not None
    assert (account.warm_nodes, account.warmth) == (None, "")
    core.heartbeats[0] = msg.Heartbeat(node_id=0, resources=msg.NodeResources(is_warm=True))
    core.heartbeats[1] = msg.Heartbeat(node_id=1, resources=msg.NodeResources(is_warm=False))
    account = parse_goodput(summary(core))
    assert account is not None
    assert account.warmth == "1 of 2 nodes restart without imports"
    assert "\ngangline_master_warm_nodes 1.0\n" in metrics_page(core, 1010.0).decode()


def test_restart_with_its_cause_is_reported_when_the_workers_train_again(core: MasterCore) -> None:
    def parse() -> Goodput:
        account = parse_goodput(summary(core))
        assert account is not None
        return account

    def beat(attempt: int, **fields: object) -> None:
        core.state.persistent.account.book_heartbeat(
            msg.Heartbeat(node_id=0, round=1, attempt=attempt, **fields)
        )

    core.state.persistent.account.change_phase(1005.0, NodePhase.TRAINING)
    beat(0, step=180, first_step=1)
    for node, cause, code in ((0, "PeerLost", 1), (1, "Killed", -9), (1, "Error", 1)):
        failure = msg.FailureReport(node_id=node, cause=cause, exit_codes=(code,))
        core.apply(JournalRecord(1006.0, failure, "c", node))
    assert parse().last_restart is None
    core.state.persistent.account.change_phase(1009.0, NodePhase.TRAINING)
    beat(1, step=176, first_step=175, spent_s={"restarting": 0.8})
    assert parse().last_restart == LastRestart("worker-1", "Killed", 137, 175, 0.8, number=1)


def test_step_has_total_loss_and_age(core: MasterCore) -> None:
    checkpoints = CheckpointAge()
    checkpoints.observe_report(
        msg.NodeReport(total_steps=450, loss=-0.25, metrics=(("accuracy", 0.5),))
    )
    checkpoints.observe_steps(175, None, 998.0)
    core.state.persistent.account.step = 175
    account = parse_goodput(summary(core, checkpoints))
    assert account is not None
    assert (account.step, account.total_steps, account.loss) == (175, 450, -0.25)
    assert account.metrics == {"accuracy": 0.5}
    assert account.age_s(TIME + timedelta(seconds=5)) == 17.0


def test_checkpointer_counts_arrive_in_a_heartbeat(tmp_path) -> None:
    path = tmp_path / "progress"
    teller = SaveReporter({"GANGLINE_PROGRESS_FILE": str(path)})
    teller.report_saved(123_456_789_012)
    teller.report_blocked(9_999_999.25)
    teller.report_counts(SaveCounts(123_456, 234_567, 345_678))
    latest = read_progress(path, tmp_path / "none")
    assert (latest.saved_step, latest.blocked_s) == (123_456_789_012, 9_999_999.25)
    teller.report_counts(SaveCounts(4, 0, 2))
    latest = read_progress(path, tmp_path / "none")
    assert latest.saves == SaveCounts(4, 0, 2)
    book = ProgressTracker(1, 0, since=0.0, is_first=True, reports_steps=False)
    saves = book.report(
        [latest, read_progress(tmp_path / "none", tmp_path / "none")], 9.0, None
    ).saves
    beat = msg.Heartbeat(node_id=0, saves=saves)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(beat), type=msg.Heartbeat) == beat
    assert beat.saves == SaveCounts(4, 0, 2)


def test_age_of_the_checkpoint_begins_with_each_saved_step(core: MasterCore) -> None:
    checkpoints = CheckpointAge()
    checkpoints.observe_steps(None, None, 1000.0)
    page = metrics_page(core, 1010.0, checkpoints).decode()
    assert "gangline_master_checkpoint_age_seconds" not in page  # no step yet
    checkpoints.observe_steps(1, None, 1020.0)
    assert checkpoints.age_s(1030.0) == 10.0
    checkpoints.observe_report(msg.NodeReport(save_s=2.5, save_interval_s=60.0))
    checkpoints.observe_steps(9, 8, 1040.0)
    checkpoints.observe_steps(10, 8, 1050.0)
    page = metrics_page(core, 1060.0, checkpoints, "research").decode()
    for line in (
        "checkpoint_age_seconds 20.0",
        "checkpoint_interval_seconds 60.0",
        "checkpoint_save_seconds 2.5",
        'queue{queue="research"} 1.0',
    ):
        assert f"\ngangline_master_{line}\n" in page
