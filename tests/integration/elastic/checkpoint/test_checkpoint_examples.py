"""Examples and integrations run as they stand."""

import os
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from gangline.elastic.checkpoint.dlrover import DdpCheckpointer, StorageType

EXAMPLES = Path(__file__).parents[4] / "examples" / "checkpoint"


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
@pytest.mark.timeout(300)
def test_the_example_ends_and_leaves_its_last_step(name: str, memory: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                "1",
            ),
            *(str(EXAMPLES / f"{name}.py"), str(tmp_path)),
        ],
        env=os.environ | {"GANGLINE_CHECKPOINT_MEMORY": str(memory), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert "step 50" in done.stdout
    assert (tmp_path / "step-000000000050" / ".metadata").exists()


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
