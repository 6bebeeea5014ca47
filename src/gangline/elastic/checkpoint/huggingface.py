"""Flash checkpoints for Hugging Face's ``Trainer``.

    trainer = Trainer(model, arguments, train_dataset=…)
    trainer.add_callback(flash_callback("s3://bucket/run", memory_every=10, storage_every=500))
    trainer.train()

The callback restores model, optimizer, scheduler, random states and the trainer's own progress when
training begins. The trainer then skips the data that were seen when ``ignore_data_skip`` is false.
"""

from importlib import import_module
from typing import Any

from gangline.elastic.checkpoint.checkpointer import Checkpointer
from gangline.elastic.checkpoint.training import TrainingState


class _Progress:
    """The trainer's counters, as something that keeps state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.state.global_step, "epoch": float(self.state.epoch or 0.0)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state.global_step = state_dict["step"]
        self.state.epoch = state_dict["epoch"]


def flash_callback(
    folder: str, *, memory_every: int = 10, storage_every: int = 500, **settings: Any
) -> Any:
    """A ``TrainerCallback`` that saves to memory and to storage every so many steps.

    Raises:
        ImportError: ``transformers`` is not installed.
    """
    base: Any = import_module("transformers").TrainerCallback

    class FlashCallback(base):  # type: ignore[misc]
        """Saves as training goes; keeps nothing of the trainer but while it is called."""

        checkpointer: Checkpointer | None = None
        restored: int | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """Restore the newest step that is whole."""
            del args, control
            self.checkpointer = Checkpointer(folder, **settings)
            loaded = self.checkpointer.load(_state(state, parts))
            self.restored = loaded.step if loaded else None

        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """Save when it is time."""
            del args, control
            assert self.checkpointer is not None
            step = state.global_step
            if step % storage_every == 0:
                self.checkpointer.save(step, _state(state, parts), "storage")
            elif step % memory_every == 0:
                self.checkpointer.save(step, _state(state, parts))

        def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """Write the last state to storage and let go."""
            del args, control
            assert self.checkpointer is not None
            self.checkpointer.save(state.global_step, _state(state, parts), "storage")
            self.checkpointer.wait()
            self.checkpointer.close()

    return FlashCallback()


def _state(state: Any, parts: dict[str, Any]) -> dict[str, Any]:
    optimizer = getattr(parts["optimizer"], "optimizer", parts["optimizer"])
    scheduler = getattr(parts["lr_scheduler"], "scheduler", parts["lr_scheduler"])
    return {
        "training": TrainingState(
            parts["model"], optimizer, scheduler=scheduler, progress=_Progress(state)
        )
    }
