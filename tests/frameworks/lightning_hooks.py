"""Resumes a training with Lightning's own checkpoint and with a flash callback.

    python lightning_hooks.py

Module, callbacks (two averages of the weights among them) and data module use all their hooks for
checkpoints. Prints one line of JSON: for each combination of an averaging callback and the step of
the interruption, what both trainings computed and what their hooks saw.
"""

import json
import logging
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from gangline.elastic.checkpoint.lightning import flash_callback

STEPS, EPOCH = 16, 8


class Interruption(Exception):
    """Ends a training."""


class Average(pl.Callback):
    """An average of the weights that begins with those of the model, or with the loaded ones."""

    def __init__(self, log: list[Any]) -> None:
        self.log_of_hooks = log
        self.average: dict[str, torch.Tensor] = {}
        self.loaded: dict[str, torch.Tensor] = {}

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        del trainer
        weights = self.loaded or pl_module.state_dict()
        self.average = {name: value.clone() for name, value in weights.items()}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        del trainer
        for name, value in pl_module.state_dict().items():
            self.average[name].lerp_(value, 0.1)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.log_of_hooks.append("callback.load_state_dict")
        self.loaded = state_dict["average"]

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        del trainer, pl_module
        assert self.average, "nothing is saved before training begins"
        checkpoint["of callback"] = [checkpoint["global_step"], {1: "one"}, ("pair", 2.5)]

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        del trainer
        self.log_of_hooks.append(
            ["callback.on_load", repr(checkpoint["of callback"]), pl_module.batches]
        )


class Model(pl.LightningModule):
    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.save_hyperparameters({"width": 4})
        self.layer = torch.nn.Linear(4, 4)
        self.log_of_hooks = log
        self.batches: list[int] = []
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        loss = self.layer(batch).pow(2).mean() * (1 + len(self.batches) / 100)
        self.losses.append(loss.item())
        self.batches.append(batch_idx)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["batches"] = list(self.batches)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.batches = checkpoint["batches"]
        optimizer = checkpoint["optimizer_states"][0]
        weights = {name: value.tolist() for name, value in checkpoint["state_dict"].items()}
        momentum = optimizer["state"][0]["exp_avg"].tolist()
        self.log_of_hooks.append(["module.on_load", sorted(checkpoint), weights, momentum])
        optimizer["param_groups"][0]["weight_decay"] = 0.5


class Data(pl.LightningDataModule):
    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.log_of_hooks = log

    def train_dataloader(self) -> Any:
        rows = torch.randn(4 * EPOCH, 4, generator=torch.Generator().manual_seed(0))
        return torch.utils.data.DataLoader(rows, batch_size=4)

    def state_dict(self) -> dict[str, Any]:
        assert self.trainer is not None
        return {"position": self.trainer.global_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.log_of_hooks.append(["data.load_state_dict", state_dict])


class Interrupt(pl.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise Interruption


def resumed(is_flash: bool, has_averaging: bool, step: int) -> list[Any]:
    """Interrupt a training before a step and resume it in new objects."""
    folder = tempfile.mkdtemp(dir=os.environ["GANGLINE_CHECKPOINT_MEMORY"])
    for is_second in (False, True):
        log: list[Any] = []
        saver: Any = ModelCheckpoint(folder, "saved", every_n_train_steps=step, save_top_k=-1)
        if is_flash:
            saver = flash_callback(f"{folder}/flash", memory_every=step)
        average = Average(log)
        callbacks = [saver, average, Interrupt(STEPS if is_second else step)]
        averaging = EMAWeightAveraging(decay=0.9)
        if has_averaging:
            callbacks.append(averaging)
        torch.manual_seed(1)
        model = Model(log)
        trainer = pl.Trainer(
            max_steps=STEPS,
            accelerator="cpu",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=not is_flash,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        path = Path(folder, "saved.ckpt")
        try:
            trainer.fit(model, Data(log), ckpt_path=path if path.exists() else None)
        except Interruption:
            assert not is_second
    states = [model.state_dict(), average.average]
    values = [[value.tolist() for value in state.values()] for state in states]
    return [model.losses, model.batches, values, averaging._latest_update_step, log]


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    results = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="gangline-test-") as memory:
        os.environ["GANGLINE_CHECKPOINT_MEMORY"] = memory
        for has_averaging in (False, True):
            for step in (EPOCH, EPOCH - 3):
                name = f"averaging {has_averaging}, step {step}"
                results[name] = [resumed(flash, has_averaging, step) for flash in (False, True)]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
