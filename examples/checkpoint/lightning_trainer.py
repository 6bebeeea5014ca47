"""PyTorch Lightning with flash checkpoints; killed and restarted, it continues exactly.

python lightning_trainer.py /tmp/checkpoints 50, or with torchrun --nproc-per-node 2.
Needs what is in requirements.txt.
"""

import os
import sys
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from gangline.elastic.checkpoint.lightning import flash_callback


class Model(LightningModule):
    """A small classifier; its records are random, so that they depend on the random state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(32, 4)
        )

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        del batch, batch_idx
        records = torch.randn(32, 16)
        loss = torch.nn.functional.cross_entropy(self.layers(records), records[:, :4].argmax(1))
        print(f"step {self.global_step + 1} loss {loss.item():.9f}", flush=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 5), "interval": "step"}
        ]


def main(folder: str, steps: int) -> None:
    """Train this number of steps in total, in epochs of eight."""
    torch.manual_seed(0)
    trainer = Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        callbacks=[flash_callback(folder, memory_every=1, storage_every=10)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), torch.utils.data.DataLoader(torch.arange(8)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
