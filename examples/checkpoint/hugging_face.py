"""Hugging Face's Trainer with flash checkpoints; killed and restarted, it continues exactly.

python hugging_face.py /tmp/checkpoints 50, or with torchrun --nproc-per-node 2.
Needs what is in requirements.txt.
"""

import sys
import tempfile

import torch
from transformers import Trainer, TrainingArguments

from gangline.elastic.checkpoint.huggingface import flash_callback


class Model(torch.nn.Module):
    """A small classifier that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(32, 4)
        )

    def forward(self, records: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = torch.nn.functional.cross_entropy(self.layers(records), labels)
        print(f"loss {loss.item():.9f}", flush=True)
        return {"loss": loss}


def main(folder: str, steps: int) -> None:
    """Train this number of steps in total, in epochs of eight, each in a new random order."""
    torch.manual_seed(0)
    records = torch.randn(64, 16)
    rows = [{"records": row, "labels": row[:4].argmax()} for row in records]
    flash = flash_callback(folder, memory_every=1, storage_every=10)
    with tempfile.TemporaryDirectory() as unused:
        arguments = TrainingArguments(
            output_dir=unused,
            max_steps=steps,
            per_device_train_batch_size=8,
            learning_rate=0.05,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(Model(), arguments, train_dataset=rows, callbacks=[flash])
        trainer.train(resume_from_checkpoint=flash.resume(trainer))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
