"""Flash checkpoints for DeepSpeed's engine, with and without ZeRO.

    engine, *_ = deepspeed.initialize(model=model, config=config, …)
    flash = FlashEngine(engine, "s3://bucket/run")
    restored = flash.load()                    # the newest complete step, or None
    while engine.global_steps < steps:
        …
        flash.save("storage" if engine.global_steps % 500 == 0 else "memory")
    flash.close()

DeepSpeed's own ``save_checkpoint`` and ``load_checkpoint`` are called, with a storage object that
receives the files they would write. In a checkpoint each file is a set of tensors, by their paths,
and one pickled value for the rest; a rank reads only its own files. Random states are saved too.
ZeRO's partitions fit no other number of ranks, here as in DeepSpeed.
"""

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from gangline.elastic.checkpoint.checkpointer import Checkpointer, SaveLevel
from gangline.elastic.checkpoint.errors import CheckpointError
from gangline.elastic.checkpoint.format.torch_framing import (
    check_loadable,
    pickle_value,
    safe_unpickle,
)
from gangline.elastic.checkpoint.training import random_states, set_random_states

TAG = "flash"
_PATH_SPECIALS = set("/[]'\"")
"""Characters with a meaning in the path of a tensor."""
_SKIPPED_METHODS = (
    "_create_checkpoint_file",
    "_create_zero_checkpoint_files",
    "_copy_recovery_script",
    "_checkpoint_tag_validation",
)
"""Methods of the engine that only handle folders and tags, which this storage does not have."""
_DEEPSPEED_DATA_CLASSES = {
    "deepspeed.runtime.zero.config": ("ZeroStageEnum",),
    "deepspeed.utils.tensor_fragment": ("fragment_address",),
    "deepspeed.runtime.fp16.loss_scaler": ("LossScaler", "DynamicLossScaler"),
}
"""DeepSpeed classes that occur in a checkpoint and hold only data."""


@dataclass(frozen=True, slots=True)
class Restored:
    """The state that training continues from."""

    step: int
    client_state: dict[str, Any]
    """The ``client_state`` that rank 0 passed to ``save``."""


@dataclass(slots=True)
class _MemoryStorage:
    """Replaces DeepSpeed's storage: stores files in a dictionary and returns them."""

    files: dict[str, Any] = field(default_factory=dict)

    def create(self, info: object) -> None: ...

    def makedirs(self, path: str, exist_ok: bool = False) -> None: ...

    def save(self, state_dict: Any, path: str) -> None:
        self.files[Path(path).name] = state_dict

    def load(self, path: str, map_location: object = None) -> Any:
        del map_location
        return self.files[Path(path).name]

    def commit(self, info: object) -> bool:
        del info
        return True

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        return dp_rank == 0

    def is_decoupled(self) -> bool:
        return False

    def preserves_storage_sharing(self) -> bool:
        """False: DeepSpeed then copies views, so that a view is saved without its base tensor."""
        return False

    def cleanup(self) -> None: ...


class FlashEngine:
    """Saves and restores the state of a DeepSpeed engine. All ranks call the same methods."""

    def __init__(self, engine: Any, folder: str | os.PathLike[str], **settings: Any) -> None:
        """Wrap the engine; ``settings`` are those of ``Checkpointer``.

        Raises:
            CheckpointError: the engine writes files of its own that only DeepSpeed can save.
        """
        for what, there in (
            ("experts (MoE)", engine.has_moe_layers),
            ("a pipeline", hasattr(engine, "is_first_stage")),
            ("an optimizer on NVMe", engine.zero_nvme_offload_optimizer()),
        ):
            if there:
                raise CheckpointError(f"only DeepSpeed itself saves an engine with {what}")
        self.engine = engine
        self.checkpointer = Checkpointer(folder, **settings)
        self._random = f"rank-{self.checkpointer.ranks.rank}"

    def save(self, level: SaveLevel = "memory", client_state: dict[str, Any] | None = None) -> bool:
        """Save under the engine's step number; see ``Checkpointer.save``.

        Raises:
            UnsavableError: DeepSpeed or ``client_state`` contain a value that needs code to load.
        """
        return self.checkpointer.save(self.engine.global_steps, self._state(client_state), level)

    def is_requested(self) -> bool:
        """Return whether to save now because the job is to be evicted; see ``Checkpointer``."""
        return self.checkpointer.is_requested(self.engine.global_steps)

    def load(self) -> Restored | None:
        """Restore the newest complete step; return None if there is none.

        Raises:
            CheckpointError: no step could be loaded, or it does not fit this engine.
        """
        load = self.checkpointer.load
        if (loaded_client := load({"ranks": 0, "client": b""})) is None:
            self.checkpointer.prepare(self._state(None))
            return None
        self._check(loaded_client.step, loaded_client.state["ranks"])
        names = self._own_files()
        rests = load({"files": {name: {"rest": b""} for name in names}}, loaded_client.step)
        assert rests is not None
        files = {name: _unpickle(rests.state["files"][name]["rest"]) for name in names}
        tensors = {name: {"tensors": _empty_tensors(file)} for name, file in files.items()}
        state = {"files": tensors, "random": {self._random: random_states()}}
        loaded = load(state, loaded_client.step)
        assert loaded is not None
        for name, file in files.items():
            filled = loaded.state["files"][name]["tensors"]
            files[name] = _map_tensors(file, partial(_insert_tensor, filled))
        self._load_files(files)
        set_random_states(loaded.state["random"][self._random])
        self.checkpointer.prepare(self._state(None))
        return Restored(loaded_client.step, _unpickle(loaded_client.state["client"]))

    def wait(self, timeout_s: float = 1800.0) -> bool:
        """Wait until storage has every step that was saved to it; return whether it has."""
        return self.checkpointer.wait(timeout_s)

    def close(self, finished: bool = True) -> None:
        """Release all resources; see ``Checkpointer.close``."""
        self.checkpointer.close(finished)

    def _state(self, client_state: dict[str, Any] | None) -> dict[str, Any]:
        """Return everything to be saved; its tensors are the engine's own, not copies."""
        with self._storage(_MemoryStorage()) as storage:
            self.engine.save_checkpoint("/", tag=TAG, save_latest=False)
        files = dict[str, Any]()
        for name, file in storage.files.items():
            tensors = dict[str, torch.Tensor]()
            rest = _map_tensors(file, partial(_extract_tensor, tensors))
            files[name] = {"rest": _pickle_checked(name, rest), "tensors": tensors}
        return {
            "ranks": self.checkpointer.ranks.world,
            "client": _pickle_checked("client_state", client_state or {}),
            "files": files,
            "random": {self._random: random_states()},
        }

    def _check(self, step: int, ranks: int) -> None:
        now = self.checkpointer.ranks.world
        if self.engine.zero_optimization() and ranks != now:
            raise CheckpointError(
                f"step {step} was saved by {ranks} ranks and there are {now}: ZeRO's partitions "
                "fit no other number; continue with as many, or start in another folder"
            )

    def _own_files(self) -> list[str]:
        """Return the file names under which DeepSpeed will read this rank's state."""
        paths = [self.engine._get_ckpt_name("/", TAG)]
        if self.engine.zero_optimization():
            paths.append(self.engine._get_zero_ckpt_name("/", TAG))
        return [Path(path).name for path in paths]

    def _load_files(self, files: dict[str, Any]) -> None:
        """Let the engine load these files; empty ones on a disk satisfy its search."""
        with self._storage(_MemoryStorage(files)), tempfile.TemporaryDirectory() as folder:
            for rank in range(self.engine.mp_world_size):
                name = self.engine._get_ckpt_name(folder, TAG, mp_placeholder=f"{rank:02d}")
                Path(name).parent.mkdir(exist_ok=True)
                Path(name).touch()
            path, _ = self.engine.load_checkpoint(folder, tag=TAG)
        if path is None:
            raise CheckpointError("DeepSpeed did not accept the state that it had saved")

    @contextmanager
    def _storage(self, files: _MemoryStorage) -> Iterator[_MemoryStorage]:
        """Let the engine save to ``files`` and load from there, without creating folders."""
        own = self.engine.checkpoint_engine
        try:
            self.engine.checkpoint_engine = files
            for name in _SKIPPED_METHODS:
                setattr(self.engine, name, lambda *_: True)
            yield files
        finally:
            self.engine.checkpoint_engine = own
            for name in _SKIPPED_METHODS:
                delattr(self.engine, name)


def _extract_tensor(
    tensors: dict[str, torch.Tensor], path: str, tensor: torch.Tensor
) -> torch.Tensor:
    """Move a tensor out of a file; return a placeholder without memory."""
    tensors[path] = tensor.detach()
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _insert_tensor(tensors: dict[str, torch.Tensor], path: str, _: torch.Tensor) -> torch.Tensor:
    return tensors[path]


def _empty_tensors(file: Any) -> dict[str, torch.Tensor]:
    """Return empty tensors for those that were moved out of a file, by their paths."""
    placeholders = dict[str, torch.Tensor]()
    _map_tensors(file, partial(_extract_tensor, placeholders))
    return {path: torch.empty(one.shape, dtype=one.dtype) for path, one in placeholders.items()}


def _map_tensors(
    value: Any, change: Callable[[str, torch.Tensor], torch.Tensor], path: str = ""
) -> Any:
    """Copy nested dictionaries and lists, with all tensors replaced by ``change``."""
    if isinstance(value, torch.Tensor):
        return change(path, value)
    if isinstance(value, dict):
        return type(value)(
            (key, _map_tensors(one, change, path + _path_step(key))) for key, one in value.items()
        )
    if type(value) in {list, tuple}:
        return type(value)(
            _map_tensors(one, change, path + _path_step(n)) for n, one in enumerate(value)
        )
    return value


def _path_step(key: object) -> str:
    """Return one step of a path, such that no two paths are equal."""
    if not isinstance(key, str):
        return f"[{key!r}]"
    return f"/{key!r}" if _PATH_SPECIALS & set(key) else f"/{key}"


def _pickle_checked(name: str, value: object) -> bytes:
    data = pickle_value(name, value)
    with torch.serialization.safe_globals(_data_classes()):
        check_loadable(name, value, data)
    return data


def _unpickle(data: bytes) -> Any:
    with torch.serialization.safe_globals(_data_classes()):
        return safe_unpickle(io.BytesIO(data))


def _data_classes() -> list[Any]:
    return [
        getattr(import_module(module), name)
        for module, names in _DEEPSPEED_DATA_CLASSES.items()
        for name in names
    ]
