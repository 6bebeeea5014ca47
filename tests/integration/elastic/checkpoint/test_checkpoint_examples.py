"""Examples and integrations run as they stand."""

import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.elastic.checkpoint.dlrover import DdpCheckpointer, StorageType

EXAMPLES = Path(__file__).parents[4] / "examples" / "checkpoint"


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
@pytest.mark.timeout(300)
def test_the_example_ends_and_leaves_its_last_step_and_then_finds_nothing_to_do(
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
        assert nursery.wait(one) == 0, one.wailed.read_text()
    said: str = started[0].said.read_text()
    return said


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


def test_a_hugging_face_training_goes_on_where_it_was(
    memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        pytest.importorskip("accelerate", reason="accelerate is not installed")
    monkeypatch.setenv("GANGLINE_CHECKPOINT_MEMORY", str(memory))
    first = hugging_face_run(transformers, tmp_path, 6)
    random.seed(99)
    again = hugging_face_run(transformers, tmp_path, 9)
    assert first.restored is None
    assert again.restored == 6
    assert (tmp_path / "steps" / "step-000000000009" / ".metadata").exists()


def hugging_face_run(transformers: Any, folder: Path, steps: int) -> Any:
    """Train a small model for so many steps in all; returns the callback."""
    from gangline.elastic.checkpoint.huggingface import flash_callback  # noqa: PLC0415

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": (self.linear(x).squeeze(-1) - labels).pow(2).mean()}

    rows = [{"x": torch.ones(4) * n, "labels": torch.tensor(float(n))} for n in range(40)]
    callback = flash_callback(str(folder / "steps"), memory_every=2, storage_every=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = transformers.TrainingArguments(
            output_dir=str(folder / "out"),
            max_steps=steps,
            per_device_train_batch_size=4,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(Model(), arguments, train_dataset=rows)
        trainer.add_callback(callback)
        trainer.train()
    return callback
