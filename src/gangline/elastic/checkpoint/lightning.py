"""Flash checkpoints for PyTorch Lightning's ``Trainer``.

    trainer = Trainer(callbacks=[flash_callback("s3://bucket/run", memory_every=10)], …)
    trainer.fit(model, data)

It is a callback and not a ``CheckpointIO``, which Lightning calls on its first rank only: here
every rank saves its part. When ``fit`` begins, it restores the newest complete step: model,
optimizers, schedulers, loops, precision, callbacks, data module and random states. The hooks of
module, callbacks and data module are called by Lightning's own checkpoint connector. Lightning
itself restarts the data of an epoch that it resumes in the middle; pass a stateful sampler
(``sampler=…``) if the order of data matters.
"""

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from gangline.elastic.checkpoint.checkpointer import Checkpointer, SaveLevel
from gangline.elastic.checkpoint.errors import CheckpointError, UnsavableError
from gangline.elastic.checkpoint.format.torch_framing import (
    check_loadable,
    pickle_value,
    safe_unpickle,
)
from gangline.elastic.checkpoint.training import (
    Stateful,
    TrainingState,
    random_states,
    set_random_states,
)

log = logging.getLogger(__name__)


class _Hooks:
    """Lightning's own checkpoint without weights and optimizer states that ``TrainingState`` saves.

    Lightning's connector creates and applies it, so it calls every hook with the same dictionary
    and in the same order as for a checkpoint of its own. A strategy that shards a model would
    gather it for that dictionary, so there hooks see no weights and no optimizer states.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.connector = trainer._checkpoint_connector
        self.is_sharded = trainer.strategy.restore_checkpoint_after_setup
        self.is_ready = False
        """Whether hooks may be called for a save: not while a checkpoint is loaded."""
        self._loaded: dict[str, Any] = {}
        self._left_out = set[str]()
        """Hyperparameters that cannot be saved."""

    def state_dict(self) -> dict[str, Any]:
        """Let Lightning create its checkpoint; return it without what has been saved already.

        Raises:
            UnsavableError: a hook has added something that would need code to load.
        """
        if not self.is_ready:
            return {"value": b""}
        strategy = self.trainer.strategy
        model, optimizers = self._model_state(), self._optimizer_states()
        as_read, given = _copy_containers([model, optimizers]), iter(optimizers)
        with (
            _replaced(self.connector, _get_lightning_module_state_dict=lambda: model),
            _replaced(strategy, optimizer_state=lambda _: next(given)),
        ):
            checkpoint = self.connector.dump_checkpoint(weights_only=False)
        of_model = list[str]()
        if _is_unchanged(model, as_read[0]):
            of_model = [key for key, value in checkpoint.items() if value is model]
        left_out = self._left_out | set(of_model)
        if _is_unchanged(checkpoint.get("optimizer_states"), as_read[1]):
            left_out.add("optimizer_states")
        state = {
            "checkpoint": {key: checkpoint[key] for key in checkpoint if key not in left_out},
            "of_model": of_model,
            "has_optimizers": "optimizer_states" in left_out,
        }
        return {"value": self._pickled(state)}

    def _pickled(self, state: dict[str, Any]) -> bytes:
        """Pickle a state, without hyperparameters that could not be loaded again.

        Lightning restores no hyperparameters; it only shows them to the hooks.
        """
        try:
            data = pickle_value("checkpoint", state)
            check_loadable("checkpoint", state, data)
            return data
        except UnsavableError:
            checkpoint: dict[str, Any] = state["checkpoint"]
            for key, value in list(checkpoint.items()):
                try:
                    check_loadable(key, value, pickle_value(key, value))
                except UnsavableError as error:
                    if key not in self._hyperparameters():
                        raise
                    self._left_out.add(key)
                    del checkpoint[key]
                    log.warning(f"hooks do not get the saved {key} after a restart: {error}")
            return pickle_value("checkpoint", state)

    def _hyperparameters(self) -> set[str]:
        owners = (self.trainer.lightning_module, self.trainer.datamodule)
        return {
            getattr(owner, f"CHECKPOINT_HYPER_PARAMS_{part}")
            for owner in owners
            if owner is not None
            for part in ("NAME", "KEY", "TYPE")
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a state for ``apply``: hooks run after model and optimizers are restored."""
        self._loaded = safe_unpickle(io.BytesIO(state_dict["value"]))

    def apply(self) -> None:
        """Let Lightning restore the loaded state, with its hooks."""
        checkpoint: dict[str, Any] = self._loaded["checkpoint"]
        # Loading changes the model in place, and hooks may read the saved weights afterwards.
        model = {
            name: value.detach().clone() if hasattr(value, "detach") else value
            for name, value in self._model_state().items()
        }
        checkpoint |= dict.fromkeys(self._loaded["of_model"], model)
        as_read = None
        if self._loaded["has_optimizers"]:
            checkpoint["optimizer_states"] = self._optimizer_states()
            as_read = _copy_containers(checkpoint["optimizer_states"])
        strategy, connector = self.trainer.strategy, self.connector
        load_model = strategy.load_model_state_dict
        load_optimizers = strategy.load_optimizer_state_dict

        def load_model_state_dict(checkpoint: dict[str, Any], strict: bool = True) -> None:
            if not self.is_sharded:
                load_model(checkpoint, strict=strict)

        def load_optimizer_state_dict(checkpoint: dict[str, Any]) -> None:
            # An optimizer casts what it loads, so it loads only what a hook has changed.
            if not self.is_sharded and not _is_unchanged(checkpoint["optimizer_states"], as_read):
                load_optimizers(checkpoint)

        with _replaced(
            strategy,
            load_model_state_dict=load_model_state_dict,
            load_optimizer_state_dict=load_optimizer_state_dict,
        ):
            connector._loaded_checkpoint = checkpoint
            try:
                connector.restore_model()
                connector.restore_datamodule()
                connector.restore_callbacks()
                connector.restore_training_state()
            finally:
                connector._loaded_checkpoint = {}

    def warn_of_missing_weights(self, module: type, callback: type) -> None:
        """Name the hooks that get a dictionary without weights and optimizer states."""
        owners = [(self.trainer.lightning_module, module)]
        owners += [(one, callback) for one in self.trainer.callbacks]
        names = [
            f"{type(owner).__name__}.{hook}"
            for owner, base in owners
            for hook in ("on_save_checkpoint", "on_load_checkpoint")
            if getattr(type(owner), hook) is not getattr(base, hook)
        ]
        if self.is_sharded and names:
            strategy = type(self.trainer.strategy).__name__
            log.warning(
                f"{strategy} shards the model: state_dict and optimizer_states are empty in the "
                f"dictionary of {', '.join(names)}, and what hooks change in them is not restored"
            )

    def _model_state(self) -> dict[str, Any]:
        return {} if self.is_sharded else self.trainer.strategy.lightning_module_state_dict()

    def _optimizer_states(self) -> list[dict[str, Any]]:
        strategy, optimizers = self.trainer.strategy, self.trainer.optimizers
        return [{} if self.is_sharded else strategy.optimizer_state(one) for one in optimizers]


@contextlib.contextmanager
def _replaced(owner: Any, **methods: Any) -> Iterator[None]:
    vars(owner).update(methods)
    try:
        yield
    finally:
        for name in methods:
            delattr(owner, name)


def _copy_containers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy_containers(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_copy_containers(below) for below in value]
    return value


def _is_unchanged(value: Any, copied: Any) -> bool:
    """Compare with the result of ``_copy_containers``; a replaced tensor is a change."""
    if isinstance(value, Mapping) and isinstance(copied, dict):
        return value.keys() == copied.keys() and all(
            _is_unchanged(below, copied[key]) for key, below in value.items()
        )
    if isinstance(value, list | tuple) and isinstance(copied, list):
        return len(value) == len(copied) and all(map(_is_unchanged, value, copied))
    is_number = isinstance(value, int | float | str) and type(value) is type(copied)
    return value is copied or (is_number and value == copied)


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
    lightning: Any = import_module("lightning.pytorch")
    base: Any = lightning.Callback

    class Restorer(base):  # type: ignore[misc]
        """The first of all callbacks: the others begin with the restored state."""

        def __init__(self, flash: Any) -> None:
            self.flash = flash

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            """Restore the newest complete step."""
            del pl_module
            self.flash.restore(trainer)

    class FlashCallback(base):  # type: ignore[misc]
        """Saves during training."""

        checkpointer: Checkpointer | None = None
        restored: int | None = None
        """The step that training continued from."""
        _saved = 0
        _random: dict[str, Any] | None = None
        _restorer: Any = None
        _hooks: Any = None

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """Restore before all other callbacks begin, and save after they end a batch."""
            del pl_module
            if stage == "fit":
                # A new list: Lightning iterates over the present one.
                others = [
                    one
                    for one in trainer.callbacks
                    if one is not self and one is not self._restorer
                ]
                self._restorer = Restorer(self)
                trainer.callbacks = [self._restorer, *others, self]

        def restore(self, trainer: Any) -> None:
            """Restore the newest complete step, before the first batch."""
            if trainer.ckpt_path:
                raise CheckpointError("pass a ckpt_path to fit, or a flash_callback, not both")
            self._hooks = hooks = _Hooks(trainer)
            hooks.warn_of_missing_weights(lightning.LightningModule, base)
            self.checkpointer = Checkpointer(folder, **settings or {})
            loaded = self.checkpointer.load(_state(trainer, others, hooks))
            if loaded is not None:
                self.restored = self._saved = loaded.step
                restored_random = random_states()
                hooks.apply()
                set_random_states(restored_random)
                # In the middle of an epoch Lightning restarts the data, which uses random numbers.
                if not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
                    self._random = restored_random
            hooks.is_ready = True

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
            self.checkpointer.save(self._saved, _state(trainer, others, self._hooks), level)

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


def _state(trainer: Any, others: dict[str, Stateful], hooks: _Hooks) -> dict[str, Any]:
    return {
        "training": TrainingState(
            trainer.strategy.model, trainer.optimizers, lightning=hooks, **others
        )
    }
