"""Workers that keep running when a rank is lost, with real PyTorch processes over gloo.

Takes 100 s: each test starts several processes that import PyTorch, and starts some of them anew.
"""

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.integration.elastic.launcher.conftest import PATIENCE_S, PYTHON, Run

SCRIPT = Path(str(getattr(find_spec("integration.elastic.launcher.survivor_script"), "origin", "")))
STEP = re.compile(r"step (\d+) rank (\d+) of (\d+) pid (\d+) loss (\S+)")
KILLS = int(os.environ.get("GANGLINE_TEST_KILLS", "0"))
Launch = Callable[..., Run]


class Training:
    """A training of ranks that end at given points."""

    def __init__(self, launch: Launch, folder: Path, *flags: str) -> None:
        self._launch, self.folder, self._flags = launch, folder, flags
        folder.mkdir()

    def start(self, mode: str, ranks: int, steps: int, *points: str) -> Run:
        self.run = self._launch(
            "--standalone", "--nproc-per-node", ranks, *self._flags, SCRIPT, mode, steps,
            self.folder, *points,
        )  # fmt: skip
        return self.run

    def go(self, number: int) -> None:
        (self.folder / f"go-{number}").touch()

    def steps(self) -> list[tuple[int, ...]]:
        """Return step, rank, world size and process of all finished steps."""
        return [(*map(int, found),) for *found, _ in self._lines()]

    def losses(self) -> dict[tuple[int, int], set[str]]:
        """Return the losses that were seen by step and rank."""
        losses: dict[tuple[int, int], set[str]] = {}
        for step, rank, _, _, loss in self._lines():
            losses.setdefault((int(step), int(rank)), set()).add(loss)
        return losses

    def processes(self, rank: int) -> set[str]:
        """Return the names of its processes; their numbers may be used again."""
        files = self.folder.glob("steps-*")
        return {file.name for file in files if f" rank {rank} of " in file.read_text()}

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.run.output
            assert self.run.process.poll() is None, self.run.output
            time.sleep(0.01)

    def _lines(self) -> list[tuple[str, ...]]:
        files = self.folder.glob("steps-*")
        return [match.groups() for file in files for match in STEP.finditer(file.read_text())]


@pytest.fixture
def train(launch: Launch, tmp_path: Path) -> Callable[..., Training]:
    def create(name: str, *flags: str) -> Training:
        return Training(launch, tmp_path / name, *flags)

    return create


def test_loss_curve_after_kills_equals_that_of_plain_pytorch(
    train: Callable[..., Training],
) -> None:
    plain, survive = train("plain"), train("survive")
    assert plain.start("plain", 3, 20).wait() == 0
    run = survive.start("survive", 3, 20, "6:2:step", "10:0:step", "15:1:step")

    for number in range(3):
        run.until("a successor is warm", number + 1)
        survive.go(number)

    assert run.wait() == 0, run.output
    assert survive.losses() == plain.losses()
    assert run.output.count("was replaced at step") == 3
    assert [len(survive.processes(rank)) for rank in range(3)] == [2, 2, 2]
    assert "rank 0 was replaced at step 10; " in run.output
    assert "restart 1" not in run.output


def test_two_ranks_are_lost_while_one_successor_is_warm(train: Callable[..., Training]) -> None:
    training = train("two")
    run = training.start("survive", 3, 9, "5:0:step", "5:2:step")
    run.until("a successor is warm")
    training.go(0)
    training.go(1)

    assert run.wait() == 0, run.output
    assert {world for _, _, world, _ in training.steps()} == {3}
    assert [len(training.processes(rank)) for rank in range(3)] == [2, 1, 2]
    assert "restart 1" not in run.output


@pytest.mark.parametrize("kind", ["SIGKILL", "SIGSTOP"])
def test_successor_that_is_lost_during_recovery_is_replaced(
    train: Callable[..., Training], kind: str
) -> None:
    training = train("again")
    run = training.start("survive", 2, 9, "5:1:step", f"0:0:restore:{kind}")
    run.until("a successor is warm")
    training.go(0)
    training.go(1)

    assert run.wait() == 0, run.output
    assert len(training.processes(0)) == 1
    assert "restart 1" not in run.output
    assert {step for step, *_ in training.steps()} == {*range(9)}


def test_stopped_rank_is_replaced_after_the_hang_timeout(train: Callable[..., Training]) -> None:
    training = train("stopped", "--hang-timeout", "step=6,start=60,first_step=60")
    run = training.start("survive", 2, 9, "5:0:step:SIGSTOP")
    run.until("a successor is warm")
    training.go(0)

    assert run.wait() == 0, run.output
    assert len(training.processes(1)) == 1
    assert "rank 0 was replaced at step 5" in run.output


def test_world_shrinks_and_grows_back_without_a_restart(train: Callable[..., Training]) -> None:
    training = train("shrink", "--min-workers", "1", "--successors", "0")
    run = training.start("survive", 2, 100_000, "6:1:step")
    training.go(0)
    training.until(lambda: any(world == 1 for _, _, world, _ in training.steps()))
    run.until("the world grew to 2 ranks")
    training.until(lambda: training.steps()[-1][2] == 2 and len(training.processes(1)) == 2)
    run.process.send_signal(signal.SIGTERM)
    run.wait()

    assert len(training.processes(0)) == 1
    assert "rank 1 was lost, 1 continue at step 6; " in run.output
    assert "restart" not in run.output


def test_smaller_world_trains_the_same_global_batches(
    train: Callable[..., Training], tmp_path: Path
) -> None:
    alone = train("alone")
    shrunk = train("shrunk", "--min-workers", "1", "--successors", "0")
    assert alone.start("elastic", 1, 12).wait() == 0
    run = shrunk.start("elastic", 2, 12, "7:1:step")
    shrunk.go(0)

    assert run.wait() == 0, run.output
    assert {world for step, _, world, _ in shrunk.steps() if step == 7} == {1}
    weights = [(tmp_path / name / "weights").read_text() for name in ("alone", "shrunk")]
    assert weights[0] == weights[1]


def test_rank_that_is_killed_in_a_checkpoint_is_replaced(train: Callable[..., Training]) -> None:
    training = train("saving")
    run = training.start("survive", 2, 9, "5:1:save")
    run.until("a successor is warm")
    training.go(0)

    assert run.wait() == 0, run.output
    assert len(training.processes(0)) == 1
    assert "restart 1" not in run.output


def test_rank_of_another_node_is_replaced_by_a_successor_of_that_node(
    launch: Launch, tmp_path: Path, free_port: int
) -> None:
    folder = tmp_path / "nodes"
    folder.mkdir()
    flags = [
        "--nnodes", 2, "--nproc-per-node", 1, "--rdzv-id", "nodes", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", f"127.0.0.1:{free_port}", "--rdzv-conf",
    ]  # fmt: skip
    hosts = [
        launch(*flags, f"is_host={1 - rank},rank={rank}", SCRIPT, "survive", 12, folder, "6:1:step")
        for rank in (0, 1)
    ]
    hosts[0].until("a successor is warm", 2)
    (folder / "go-0").touch()

    assert [run.wait() for run in hosts] == [0, 0], [run.output for run in hosts]
    assert "rank 1 was replaced at step 6; " in hosts[0].output


class Nodes:
    """A training on several nodes of one rank; the first one has the master."""

    def __init__(self, launch: Launch, folder: Path, port: int, nnodes: str) -> None:
        self._launch, self._port, self._nnodes = launch, port, nnodes
        self.training = Training(launch, folder)
        self.runs: list[Run] = []

    def add(self, steps: int, rank: int | None = None) -> Run:
        folder, host = self.training.folder, len(self.runs) == 0
        rank = min(len(self.runs), 1) if rank is None else rank
        run = self._launch(
            "--nnodes", self._nnodes, "--nproc-per-node", 1, "--node-rank", rank,
            "--rdzv-id", "nodes", "--rdzv-backend", "c10d", "--rdzv-endpoint",
            f"127.0.0.1:{self._port}", "--rdzv-conf", f"is_host={int(host)},last_call_timeout=1",
            SCRIPT, "survive", steps, folder,
        )  # fmt: skip
        self.runs.append(run)
        self.training.run = self.runs[0]
        return run


def end_all(nodes: Nodes) -> None:
    for run in nodes.runs:
        run.process.send_signal(signal.SIGTERM)
    for run in nodes.runs:
        run.wait()


def test_others_train_on_without_a_lost_node_and_with_its_replacement(
    launch: Launch, tmp_path: Path, free_port: int
) -> None:
    nodes = Nodes(launch, tmp_path / "nodes", free_port, "1:2")
    first, second = nodes.add(100_000), nodes.add(100_000)
    first.until("a successor is warm")
    nodes.training.until(lambda: len(nodes.training.processes(1)) == 1)
    second.process.kill()
    first.until("rank 1 was lost, 1 continue at step ")
    nodes.add(100_000)
    nodes.training.until(lambda: len(nodes.training.processes(1)) == 2)
    end_all(nodes)

    assert len(nodes.training.processes(0)) == 1
    assert "the world grew to 2 ranks at step " in first.output
    assert "restart" not in first.output


def test_loss_of_the_node_of_rank_0_restarts_the_others(
    launch: Launch, tmp_path: Path, free_port: int
) -> None:
    nodes = Nodes(launch, tmp_path / "nodes", free_port, "1:2")
    other, first = nodes.add(100_000, rank=1), nodes.add(100_000, rank=0)
    first.until("a successor is warm", 2)
    (pid,) = nodes.training.processes(1)
    first.process.kill()
    nodes.training.until(lambda: len(nodes.training.processes(0)) == 2)
    end_all(nodes)

    assert pid not in nodes.training.processes(0)
    assert "the node of rank 0 cannot be reached" in other.output


def test_rank_is_replaced_on_request(train: Callable[..., Training]) -> None:
    training = train("request")
    run = training.start("survive", 2, 100_000)
    run.until("a successor is warm")
    replace = [PYTHON, "-m", "gangline.elastic.agent.replace_rank"]
    refused = subprocess.run([*replace, "7"], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "there is no rank 7: the ranks are 0 to 1" in refused.stderr
    subprocess.run([*replace, "0", "--reason", "maintenance"], check=True)
    run.until("rank 0 was replaced at step")
    run.process.send_signal(signal.SIGTERM)
    run.wait()

    assert "is ended: maintenance" in run.output
    assert len(training.processes(1)) == 1


def test_loss_before_the_ranks_can_go_on_restarts_all(train: Callable[..., Training]) -> None:
    training = train("early", "--successors", "0")
    run = training.start("survive", 2, 4, "0:1:step")
    training.go(0)

    assert run.wait() == 0, run.output
    assert "restart 1 of 3" in run.output


@pytest.mark.skipif(not KILLS, reason="GANGLINE_TEST_KILLS is the number of kills")
@pytest.mark.timeout(3600)
def test_many_kills_at_random_times(train: Callable[..., Training]) -> None:
    """With ``GANGLINE_TEST_KILLS=100``: the losses, and all processes not hit, stay the same."""
    survive = train("survive", "--hang-timeout", "step=10,start=100,first_step=100")
    run = survive.start("survive", 3, 1_000_000)
    chance = random.Random(int(os.environ.get("GANGLINE_TEST_SEED", "1")))
    hit: set[str] = set()

    def living() -> list[str]:
        """Return the process of each rank, when all have one that has not been hit."""
        survive.until(lambda: all(survive.processes(rank) - hit for rank in range(3)))
        assert "restart" not in run.output, run.output
        return [process for rank in range(3) for process in survive.processes(rank) - hit]

    for number in range(KILLS):
        run.until("a successor is warm", number + 1)
        time.sleep(chance.uniform(0, 0.05))
        first, *others = victims = chance.sample(living(), chance.choice((1, 1, 2)))
        hit.update(victims)
        kind = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
        os.kill(number_of(first), kind)
        for other in others:  # at once, or during the recovery
            time.sleep(chance.choice((0.0, chance.uniform(0, 0.3))))
            os.kill(number_of(other), signal.SIGKILL)
        assert len(living()) == 3
    last = max(step for step, *_ in survive.steps())
    run.process.send_signal(signal.SIGTERM)
    run.wait()

    plain = train("plain")
    assert plain.start("plain", 3, last).wait() == 0
    # A rank that was behind when another one was lost has taken the state after a step from others.
    losses, expected = survive.losses(), plain.losses()
    assert {step for step, _ in losses} >= {*range(last)}
    assert {key: losses[key] for key in expected if key in losses} == {
        key: expected[key] for key in expected if key in losses
    }
    assert {*re.findall(r" s, (\d+) step", run.output)} <= {"0", "1"}


def number_of(process: str) -> int:
    return int(process.split("-")[1])
