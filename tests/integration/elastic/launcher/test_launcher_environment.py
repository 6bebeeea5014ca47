"""Workers have the environment variables of torchrun, names and values, in each attempt."""

import json
import socket
from pathlib import Path

import pytest

OF_ONE_RUN = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
"""Variables with ports and names of a run."""
ADDED = ("GANGLINE_", "RUNTIME_METRICS_PATH")
"""Beginnings of variables that only Gangline sets."""
NEWER = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
"""Variables that only newer releases of torchrun set."""
DUMP = """
    import json, os, sys, time
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    path = f"{sys.argv[1]}.{attempt}.{os.environ['RANK']}"
    with open(path + ".part", "w") as file:
        json.dump([dict(os.environ), sys.argv[2:]], file)
    os.rename(path + ".part", path)
    if attempt < int(sys.argv[2]):
        while not all(os.path.exists(f"{sys.argv[1]}.{attempt}.{rank}") for rank in (0, 1)):
            time.sleep(0.01)
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        time.sleep(60)
"""
Dump = dict[str, str]


def environments(path: Path) -> dict[str, Dump]:
    """The environments below a path by attempt and rank, without what differs between runs."""
    found = {}
    for each in path.parent.glob(path.name + ".*.*"):
        variables, arguments = json.loads(each.read_text())
        if variables["MASTER_ADDR"] == "localhost":  # of several nodes, they use the address
            variables["MASTER_ADDR"] = socket.gethostbyname("localhost")
        found[each.name.removeprefix(path.name)] = {
            name: value
            for name, value in variables.items()
            if name not in OF_ONE_RUN | NEWER and not name.startswith(ADDED)
        } | {"arguments": arguments}
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("flags", "variables", "kills"),
    [
        pytest.param(["--nproc-per-node=2", "--max-restarts=1"], {}, 1, id="killed"),
        pytest.param(
            ["--standalone", "--virtual-local-rank", "--role=trainer", "--max-restarts=2"],
            {"PET_NPROC_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "3,5"},
            0,
            id="options",
        ),
    ],
)
def test_workers_of_a_node_have_the_variables_of_torchrun(
    launch, script, tmp_path, flags, variables, kills
):
    for program in ("torchrun", "gangline"):
        arguments = (*flags, script(DUMP), tmp_path / program, kills, "${local_rank}")
        run = launch(*arguments, program=program, **variables)
        assert run.wait() == 0, run.output
    theirs, ours = environments(tmp_path / "torchrun"), environments(tmp_path / "gangline")
    assert len(theirs) == 2 * (1 + kills)
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_of_two_nodes_have_the_variables_of_torchrun(launch, script, tmp_path, free_port):
    address = f"127.0.0.1:{free_port}"
    for program in ("torchrun", "gangline"):
        flags = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job", "--max-restarts=1")
        arguments = (*flags, "--rdzv-endpoint", address, script(DUMP), tmp_path / program, 0)
        nodes = [launch(*arguments, program=program, NODE_ID="the user's") for _ in range(2)]
        for node in nodes:
            assert node.wait() == 0, node.output
    theirs, ours = environments(tmp_path / "torchrun"), environments(tmp_path / "gangline")
    assert len(theirs) == 2
    assert ours == theirs
