"""A Lightning module with validation, a scheduler and Lightning's own checkpoints."""

import os
import sys

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_only
from records import end, end_step, start
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 4


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32),
            torch.nn.BatchNorm1d(32),
            torch.nn.Tanh(),
            torch.nn.Linear(32, 4),
        )

    def training_step(self, batch, number):
        records, labels = batch
        return torch.nn.functional.cross_entropy(self.layers(records), labels)

    def validation_step(self, batch, number):
        records, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layers(records), labels)
        self.log("val", loss, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]


class Steps(Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, number):
        end_step(trainer.global_step, outputs["loss"].item())


def main() -> None:
    start(rank_read_at_import=rank_zero_only.rank)
    seed_everything(7)
    records = torch.randn(32, 16)
    rows = TensorDataset(records, records[:, :4].argmax(1))
    saving = ModelCheckpoint(sys.argv[1], save_last=True, save_top_k=1, monitor="val")
    trainer = Trainer(
        max_epochs=EPOCHS,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        callbacks=[saving, Steps()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = os.path.join(sys.argv[1], "last.ckpt")
    model = Classifier()
    trainer.fit(
        model,
        DataLoader(rows, 4, shuffle=True),
        DataLoader(rows, 8),
        ckpt_path=last if os.path.exists(last) else None,
    )
    end(model.state_dict())


if __name__ == "__main__":
    main()
