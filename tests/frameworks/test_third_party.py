"""Third-party programs give the same to the bit under torchrun and Gangline, killed or not.

Each program is run by torchrun, in which it is killed and resumes by its own checkpoints, and by
Gangline, once uninterrupted and once killed at the same steps. The first kill waits for a warm
interpreter, so what takes over in Gangline is a warm start and in torchrun a cold one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from frameworks.third_party_programs import Results, ThirdParty

RANKS = 2
Kill = tuple[int, int]


@dataclass(frozen=True)
class Case:
    """How a program is killed."""

    kills: tuple[Kill, ...]
    """Ranks and steps."""
    resumes_exactly: bool = True
    """A resumed training equals one that was not interrupted."""
    nodes: int = 1
    """Nodes under Gangline. torchrun has both workers on one, which computes the same."""


CASES = {
    # Its checkpoints have no random states: a resumed training repeats the first random numbers.
    "gpt": Case(((1, 5), (0, 7)), resumes_exactly=False),
    "hugging_face_trainer": Case(((0, 5),)),
    # It goes on in the middle of an epoch, with another order of the records.
    "accelerate_loop": Case(((1, 7),), resumes_exactly=False),
    # Two nodes: Lightning reads RANK while it is imported, which depends on the world.
    "lightning_fit": Case(((1, 10),), nodes=2),
    "fsdp2_dcp": Case(((0, 5),)),
}
OF_ONE_RUN = {
    *("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "KILLS_WAIT_FOR"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "LOGLEVEL"),
}
"""Variables with ports and names of a run, and restarts, which torchrun does not make here."""
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


@pytest.fixture(params=["gloo", "nccl"])
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
    nodes = 1 if devices else case.nodes  # two nodes would take the same device
    variables = {"CUDA_VISIBLE_DEVICES": devices}
    if nodes > 1:
        variables["OMP_NUM_THREADS"] = "1"  # the default depends on the workers of a node
    third_party = ThirdParty(python, tmp_path, **variables)
    theirs = third_party.torchrun("theirs", program, case.kills)
    assert theirs.codes == [*(1 for _ in case.kills), 0], theirs.stderr()

    straight = third_party.gangline("straight", program, nodes=nodes)
    assert straight.codes == [0] * nodes, straight.stderr()
    assert "left behind" not in straight.stderr(), "all processes that remain are Gangline's"
    if case.resumes_exactly:
        assert straight.losses(0) == losses_of_all_lives(theirs, case.kills)
        assert straight.weights() == theirs.weights()
    else:
        reference = third_party.torchrun("reference", program)
        assert reference.codes == [0], reference.stderr()
        assert straight.losses(0) == reference.losses(0)
        assert straight.end() == reference.end()
        assert straight.stdout() == reference.stdout()

    killed = third_party.gangline("killed", program, case.kills, nodes)
    assert killed.codes == [0] * nodes, killed.stderr()
    assert list(killed.records) == list(theirs.records) == list(range(len(case.kills) + 1))
    for life in theirs.records:
        assert losses(killed, life, case.kills) == losses(theirs, life, case.kills)
        environment = killed.start(life)[0]["environment"]
        assert environment["TORCHELASTIC_RESTART_COUNT"] == str(life), "a restart for each kill"
        assert starts(killed, life, nodes) == starts(theirs, life, nodes)
    assert killed.end() == theirs.end()


def losses(results: Results, life: int, kills: Sequence[Kill]) -> dict[int, dict[int, str]]:
    """The losses of a life, up to its kill.

    The other rank is ended at any moment after the exchange in the step of the kill, so that it
    may have recorded that step or not.
    """
    found = results.losses(life)
    for killed_rank, step in kills[life : life + 1]:
        for rank in found.keys() - {killed_rank}:
            found[rank].pop(step, None)
    return found


def losses_of_all_lives(results: Results, kills: Sequence[Kill]) -> dict[int, dict[int, str]]:
    """The loss of each step in the last life in which it was made."""
    found: dict[int, dict[int, str]] = {rank: {} for rank in range(RANKS)}
    for life in results.records:
        for rank, steps in losses(results, life, kills).items():
            found[rank] |= steps
    return found


def starts(results: Results, life: int, nodes: int) -> list[Any]:
    """What each rank saw before it trained, without what differs between any two runs."""
    ignored = OF_ONE_RUN | (OF_NODES if nodes > 1 else set())
    found = []
    for _, seen in sorted(results.start(life).items()):
        environment = {
            name: value
            for name, value in seen["environment"].items()
            if name not in ignored and not name.startswith(ADDED)
        }
        found.append(seen | {"environment": environment})
    return found
