"""Flash checkpoints for Hugging Face's ``Trainer``.

    flash = flash_callback("s3://bucket/run", memory_every=10, storage_every=500)
    trainer = Trainer(model, arguments, train_dataset=…, callbacks=[flash])
    trainer.train(resume_from_checkpoint=flash.resume(trainer))

It restores model, optimizer, scheduler, random states and the trainer's own progress. ``resume``
gives the trainer its position, so that it continues in the right epoch and skips the records it has
seen (unless ``ignore_data_skip`` is set). State of other callbacks, such as the patience of early
stopping, is not restored.
"""

import dataclasses
import json
import logging
import shutil
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from gangline.elastic.checkpoint.checkpointer import Checkpointer, SaveLevel
from gangline.elastic.checkpoint.training import (
    TrainingState,
    random_states,
    set_random_states,
)

log = logging.getLogger(__name__)


def flash_callback(
    folder: str, *, memory_every: int = 10, storage_every: int = 500, **settings: Any
) -> Any:
    """Return a ``TrainerCallback`` that saves to memory and to storage at fixed intervals of steps.

    Pass the result of its ``resume(trainer)`` to ``trainer.train`` as ``resume_from_checkpoint``.
    ``settings`` are those of ``Checkpointer``.

    Raises:
        ImportError: ``transformers`` is not installed.
    """
    base: Any = import_module("transformers").TrainerCallback

    class FlashCallback(base):  # type: ignore[misc]
        """Saves during training; it holds no reference to the trainer between calls."""

        def __init__(self) -> None:
            self.checkpointer: Checkpointer | None = None
            self.restored: int | None = None
            self._stored: int | None = None
            self._place: _ResumeFolder | None = None
            self._random: dict[str, Any] | None = None

        def resume(self, trainer: Any) -> str | None:
            """Find the newest complete step; return the folder to resume from, or None."""
            progress = self._seek()
            if progress is None:
                return None
            self._place = _ResumeFolder(trainer, progress)
            return self._place.folder

        def _seek(self) -> str | None:
            """Return the trainer's own state from the newest complete step."""
            self.checkpointer = Checkpointer(folder, **settings)
            loaded = self.checkpointer.load({"trainer": ""})
            if loaded is None:
                return None
            self.restored = loaded.step
            return str(loaded.state["trainer"])

        def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """Restore model, optimizer, scheduler and random states."""
            del args, control
            if self.checkpointer is None and (progress := self._seek()):
                log.warning(
                    "data restarts: call train(resume_from_checkpoint=callback.resume(trainer))"
                )
                state.global_step = json.loads(progress)["global_step"]
            assert self.checkpointer is not None
            training = {"training": _training(parts)}
            if self.restored is None:
                self.checkpointer.prepare(_full_state(state, parts))
                return
            self.checkpointer.load(training, self.restored)
            if self._place is not None:
                self._place.remove()
                # In the middle of an epoch the trainer skips records, which uses random numbers.
                self._random = None if float(state.epoch).is_integer() else random_states()

        def on_step_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """Restore the random states that skipping records has changed."""
            del args, state, control, parts
            if self._random is not None:
                set_random_states(self._random)
                self._random = None

        def on_epoch_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """Restore the random states if all records were skipped: the next pass uses them."""
            self.on_step_begin(args, state, control, **parts)

        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """Save if a save is due."""
            del args, control
            if state.global_step % storage_every == 0:
                self._save(state, parts, "storage")
            elif self._is_due(state.global_step):
                self._save(state, parts, "memory")

        def _is_due(self, step: int) -> bool:
            assert self.checkpointer is not None
            return self.checkpointer.is_requested(step) or step % memory_every == 0

        def _save(self, state: Any, parts: dict[str, Any], level: SaveLevel) -> None:
            assert self.checkpointer is not None
            self.checkpointer.save(state.global_step, _full_state(state, parts), level)
            if level == "storage":
                self._stored = state.global_step

        def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            """Write the last state to storage and close the checkpointer."""
            del args, control
            assert self.checkpointer is not None
            if state.global_step != self._stored:
                self._save(state, parts, "storage")
            self.checkpointer.wait()
            self.checkpointer.close()
            self.checkpointer = None

    return FlashCallback()


class _ResumeFolder:
    """A folder from which the trainer reads its position; it holds no weights.

    The trainer would insist on weights in it, so its method that loads them is replaced.
    """

    def __init__(self, trainer: Any, progress: str) -> None:
        self.trainer = trainer
        self.folder = tempfile.mkdtemp(prefix="gangline-resume-")
        Path(self.folder, "trainer_state.json").write_text(progress)
        trainer._load_from_checkpoint = lambda *_, **__: None

    def remove(self) -> None:
        """Restore the trainer's method and remove the folder."""
        del self.trainer._load_from_checkpoint
        shutil.rmtree(self.folder)


def _full_state(state: Any, parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "training": _training(parts),
        "trainer": json.dumps(dataclasses.asdict(state), sort_keys=True),
    }


def _training(parts: dict[str, Any]) -> TrainingState:
    optimizer = getattr(parts["optimizer"], "optimizer", parts["optimizer"])
    scheduler = getattr(parts["lr_scheduler"], "scheduler", parts["lr_scheduler"])
    return TrainingState(parts["model"], optimizer, scheduler=scheduler)
