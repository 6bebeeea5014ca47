"""Third-party programs give the same to the bit under torchrun and Gangline, killed or not.

Each program is run by torchrun, in which it is killed and resumes by its own checkpoints, and by
Gangline, once uninterrupted and once killed at the same step. A kill waits for a warm interpreter,
so what takes over in Gangline is a warm start and in torchrun a cold one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from frameworks.third_party_programs import GANGLINE, TORCHRUN, Results, run
from gangline.elastic.agent.world import free_port

RANKS = 2


@dataclass(frozen=True)
class Case:
    """How a program is killed."""

    kills: tuple[tuple[int, int], ...]
    """Rank and step, for each attempt."""
    resumes_exactly: bool = True
    """A resumed training equals one that was not interrupted."""
    nodes: int = 1
    """Nodes under Gangline. torchrun has both workers on one, which computes the same."""


CASES = {
    # Its checkpoints have no random states: a resumed training repeats the first random numbers.
    "gpt": Case(((1, 5), (0, 7)), resumes_exactly=False),
    "hugging_face_trainer": Case(((0, 5),)),
    "accelerate_loop": Case(((1, 7),)),
    # Two nodes: Lightning reads RANK at its import, when a warm interpreter has none yet.
    "lightning_fit": Case(((1, 10),), nodes=2),
    "fsdp2_dcp": Case(((0, 5),)),
}

BACKENDS = ["gloo", "nccl"]
OF_ONE_RUN = {
    *("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "KILLS_WAIT_FOR"),
    "TORCHELASTIC_USE_AGENT_STORE",
}
"""Variables with ports and names of a run; and who opens the store, which is another process."""
OF_NODES = {
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"),
}
"""Variables that depend on the number of nodes."""
ADDED = ("GANGLINE_", "RUNTIME_METRICS_PATH")
"""Beginnings of variables that only Gangline sets."""


@pytest.fixture(scope="session")
def python(image_map: Path) -> Path:
    """The interpreter with all libraries of the programs."""
    environments = yaml.safe_load(image_map.read_text())
    return Path(environments["gangline/examples-checkpoint:*"]["env"], "bin", "python")


@pytest.fixture(params=BACKENDS)
def devices(request: pytest.FixtureRequest, python: Path) -> str:
    """``CUDA_VISIBLE_DEVICES``: the programs use NCCL where they see devices."""
    if request.param == "gloo":
        return ""
    [version] = (python.parent.parent / "lib").glob("python*/site-packages/torch/version.py")
    if "cuda: Optional[str] = None" in version.read_text():
        pytest.skip("NCCL needs a PyTorch for CUDA; this one is for processors")
    present = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if present < RANKS:
        pytest.skip(f"NCCL needs a device for each of {RANKS} workers; this machine has {present}")
    return "0,1"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", CASES)
def test_a_program_computes_the_same_under_torchrun_and_gangline(
    program: str, python: Path, devices: str, tmp_path: Path
) -> None:
    case = CASES[program]
    variables: dict[str, Any] = {"CUDA_VISIBLE_DEVICES": devices}
    theirs = run(python, TORCHRUN, program, tmp_path / "theirs", kills=case.kills, **variables)
    assert theirs.codes == [0], theirs.stderr()
    reference, kills = theirs, case.kills
    if not case.resumes_exactly:
        kills = ()
        reference = run(python, TORCHRUN, program, tmp_path / "reference", **variables)
        assert reference.codes == [0], reference.stderr()
    nodes = 1 if devices else case.nodes  # two nodes would take the same device
    variables |= {"nodes": nodes, "flags": rendezvous(nodes)}

    straight = run(python, GANGLINE, program, tmp_path / "straight", **variables)
    assert straight.codes == [0] * nodes, straight.stderr()
    assert list(straight.records) == [0]
    assert straight.losses(0) == losses_of_all_attempts(reference, kills)
    assert straight.end() == reference.end()
    if reference is not theirs:
        assert straight.stdout() == reference.stdout()

    killed = run(
        python, GANGLINE, program, tmp_path / "ours", kills=case.kills, waits=True, **variables
    )
    assert killed.codes == [0] * nodes, killed.stderr()
    assert len(killed.records) == len(theirs.records) == len(case.kills) + 1
    for attempt in theirs.records:
        kill = case.kills[attempt] if attempt < len(case.kills) else None
        assert losses(killed, attempt, kill) == losses(theirs, attempt, kill)
        assert seen(killed, attempt, nodes) == seen(theirs, attempt, nodes)
    assert killed.end() == theirs.end()


def rendezvous(nodes: int) -> Sequence[str]:
    """The flags of several nodes on this machine."""
    if nodes == 1:
        return ()
    return ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")


def losses(results: Results, attempt: int, kill: tuple[int, int] | None) -> dict[int, Any]:
    """The losses up to the kill.

    The other rank is ended at any moment after the exchange in the step of the kill, so that it
    may have recorded that step or not.
    """
    found = results.losses(attempt)
    for rank in found:
        if kill and rank != kill[0]:
            found[rank].pop(kill[1], None)
    return found


def losses_of_all_attempts(
    results: Results, kills: Sequence[tuple[int, int]]
) -> dict[int, dict[int, str]]:
    """The loss of each step in the last attempt that has made it."""
    found: dict[int, dict[int, str]] = {rank: {} for rank in range(RANKS)}
    for attempt in results.records:
        kill = kills[attempt] if attempt < len(kills) else None
        for rank, steps in losses(results, attempt, kill).items():
            found[rank] |= steps
    return found


def seen(results: Results, attempt: int, nodes: int) -> dict[int, Any]:
    """What the workers saw before they trained, without what differs between any two runs."""
    found = results.started(attempt)
    ignored = OF_ONE_RUN | (OF_NODES if nodes > 1 else set())
    for values in found.values():
        values["environment"] = {
            name: value
            for name, value in values["environment"].items()
            if name not in ignored and not name.startswith(ADDED)
        }
    return found
