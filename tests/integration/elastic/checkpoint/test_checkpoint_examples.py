"""Examples run as they stand; those for other frameworks are in the frameworks' tests."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.elastic.checkpoint.dlrover import DdpCheckpointer, StorageType

EXAMPLES = Path(__file__).parents[4] / "examples" / "checkpoint"


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
@pytest.mark.timeout(300)
def test_the_example_stores_its_last_step_and_then_has_nothing_to_do(
    name: str, nursery: Any, memory: Path, tmp_path: Path, outputs: Path
) -> None:
    first = ranks_of(name, nursery, memory, tmp_path, outputs)
    assert "step 50" in first
    assert (tmp_path / "step-000000000050" / ".metadata").exists()
    assert "step" not in ranks_of(name, nursery, memory, tmp_path, outputs)


def ranks_of(name: str, nursery: Any, memory: Path, folder: Path, outputs: Path) -> str:
    """Run two ranks of an example with the environment that a launcher gives them."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "GANGLINE_CHECKPOINT_MEMORY": str(memory),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": "2",
    }
    started = [
        nursery.start(outputs, EXAMPLES / f"{name}.py", str(folder), **shared, RANK=str(rank))
        for rank in range(2)
    ]
    for one in started:
        assert nursery.wait(one) == 0, one.errors.read_text()
    printed: str = started[0].output.read_text()
    return printed


def test_a_script_for_dlrover_runs_with_another_import(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_CHECKPOINT_MEMORY", str(memory))
    state = {"model": {"w": torch.arange(10.0)}, "step": 5}
    checkpointer = DdpCheckpointer(tmp_path)
    assert checkpointer.load_checkpoint() == {}
    checkpointer.save_checkpoint(5, state, storage_type=StorageType.DISK)
    assert checkpointer.wait_latest_checkpoint(60)
    checkpointer.save_checkpoint(6, state | {"step": 6}, storage_type=StorageType.MEMORY)
    found = checkpointer.load_checkpoint()
    checkpointer.close()
    assert found["step"] == 6
    assert torch.equal(found["model"]["w"], state["model"]["w"])
