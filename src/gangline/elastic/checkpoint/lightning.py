"""Flash checkpoints for PyTorch Lightning's ``Trainer``.

    trainer = Trainer(callbacks=[flash_callback("s3://bucket/run", memory_every=10)], …)
    trainer.fit(model, data)

It is a callback and not a ``CheckpointIO``, which Lightning calls on its first rank only: here
every rank saves its part. When ``fit`` begins, it restores the newest complete step: model,
optimizers, schedulers, loops, precision, callbacks and random states. Lightning itself restarts the
data of an epoch that it resumes in the middle; pass a stateful sampler (``sampler=…``) if the order
of data matters.
"""

from importlib import import_module
from typing import Any

from gangline.elastic.checkpoint.checkpointer import Checkpointer, SaveLevel
from gangline.elastic.checkpoint.errors import CheckpointError
from gangline.elastic.checkpoint.training import (
    SingleValueState,
    Stateful,
    TrainingState,
    random_states,
    set_random_states,
)


class _Callbacks:
    """State of the other callbacks, such as the best score so far."""

    def __init__(self, trainer: Any) -> None:
        self.callbacks = {one.state_key: one for one in trainer.callbacks}

    def state_dict(self) -> dict[str, Any]:
        states = {key: one.state_dict() for key, one in self.callbacks.items()}
        return {key: state for key, state in states.items() if state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for key, state in state_dict.items():
            if key in self.callbacks:
                self.callbacks[key].load_state_dict(state)


def flash_callback(
    folder: str,
    *,
    memory_every: int = 10,
    storage_every: int = 500,
    settings: dict[str, Any] | None = None,
    **others: Stateful,
) -> Any:
    """Return a ``Callback`` that saves to memory and storage every few optimizer steps.

    ``settings`` are those of ``Checkpointer``; ``others`` are saved as well, under their names.

    Raises:
        ImportError: ``lightning`` is not installed.
    """
    base: Any = import_module("lightning.pytorch").Callback

    class FlashCallback(base):  # type: ignore[misc]
        """Saves during training."""

        checkpointer: Checkpointer | None = None
        restored: int | None = None
        """The step that training continued from."""
        _saved = 0
        _random: dict[str, Any] | None = None

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            """Restore the newest complete step."""
            del pl_module
            if trainer.ckpt_path:
                raise CheckpointError("pass a ckpt_path to fit, or a flash_callback, not both")
            self.checkpointer = Checkpointer(folder, **settings or {})
            loaded = self.checkpointer.load(_state(trainer, others))
            if loaded is not None:
                self.restored = self._saved = loaded.step
                # In the middle of an epoch Lightning restarts the data, which uses random numbers.
                if not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
                    self._random = random_states()

        def on_train_batch_start(self, *_: Any) -> None:
            """Restore the random states that restarting the data has changed."""
            if self._random is not None:
                set_random_states(self._random)
                self._random = None

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            """Save if a save is due; a step may consist of several batches."""
            step = trainer.global_step
            if step != self._saved and step % storage_every == 0:
                self._save(trainer, "storage")
            elif step != self._saved and self._is_due(step):
                self._save(trainer, "memory")

        def _is_due(self, step: int) -> bool:
            assert self.checkpointer is not None
            return self.checkpointer.is_requested(step) or step % memory_every == 0

        def _save(self, trainer: Any, level: SaveLevel) -> None:
            assert self.checkpointer is not None
            self._saved = trainer.global_step
            self.checkpointer.save(self._saved, _state(trainer, others), level)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            """Write the last state to storage and close the checkpointer."""
            del pl_module
            assert self.checkpointer is not None
            self._save(trainer, "storage")
            self.checkpointer.wait()
            self.checkpointer.close()
            self.checkpointer = None

        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """Close the checkpointer of a failed training; the saver uploads its newest save."""
            del trainer, pl_module, stage
            if self.checkpointer is not None:
                self.checkpointer.close(finished=False)
                self.checkpointer = None

    return FlashCallback()


def _state(trainer: Any, others: dict[str, Stateful]) -> dict[str, Any]:
    schedulers = {
        f"scheduler-{number}": config.scheduler
        for number, config in enumerate(trainer.lr_scheduler_configs)
    }
    return {
        "training": TrainingState(
            trainer.strategy.model,
            trainer.optimizers,
            **schedulers,
            loops=SingleValueState(trainer.fit_loop),
            precision=SingleValueState(trainer.precision_plugin),
            callbacks=SingleValueState(_Callbacks(trainer)),
            **others,
        )
    }
