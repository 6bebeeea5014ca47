"""Flash checkpoints for DeepSpeed's engine, with ZeRO and without.

    engine, *_ = deepspeed.initialize(model=model, config=config, …)
    flash = FlashEngine(engine, "s3://bucket/run")
    restored = flash.load()                    # the newest step that is whole, or None
    while engine.global_steps < steps:
        …
        flash.save("storage" if engine.global_steps % 500 == 0 else "memory")
    flash.close()

DeepSpeed itself says what it keeps: its own ``save_checkpoint`` and ``load_checkpoint`` are called,
on a storage that takes what would become its files. In a checkpoint each of these is its tensors,
by their paths, and one value for all the rest; a rank reads what is its own. Random states are kept
too. ZeRO's partitions fit no other number of ranks, here as in DeepSpeed.
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

from gangline.elastic.checkpoint.checkpointer import Checkpointer, Level
from gangline.elastic.checkpoint.envelope import check_loadable, pickled
from gangline.elastic.checkpoint.errors import CheckpointError
from gangline.elastic.checkpoint.safety import safe_load
from gangline.elastic.checkpoint.training import random_states, set_random_states

TAG = "flash"
_MARKS = set("/[]'\"")
"""What has a meaning in the path of a tensor."""
_IDLE = (
    "_create_checkpoint_file",
    "_create_zero_checkpoint_files",
    "_copy_recovery_script",
    "_checkpoint_tag_validation",
)
"""What an engine need not do where there are no folders, and one tag for all."""
_DATA = {
    "deepspeed.runtime.zero.config": ("ZeroStageEnum",),
    "deepspeed.utils.tensor_fragment": ("fragment_address",),
    "deepspeed.runtime.fp16.loss_scaler": ("LossScaler", "DynamicLossScaler"),
}
"""What DeepSpeed keeps that is neither a tensor nor of Python's own kinds: numbers with names."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What training goes on from."""

    step: int
    client_state: dict[str, Any]
    """What rank 0 gave to ``save`` under this name."""


@dataclass(slots=True)
class _Files:
    """In place of DeepSpeed's storage: keeps what it is given, and gives it back."""

    kept: dict[str, Any] = field(default_factory=dict)

    def create(self, info: object) -> None:
        """A checkpoint begins."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """There are no folders."""

    def save(self, state_dict: Any, path: str) -> None:
        """Keep a file."""
        self.kept[Path(path).name] = state_dict

    def load(self, path: str, map_location: object = None) -> Any:
        """Give a file back."""
        del map_location
        return self.kept[Path(path).name]

    def commit(self, info: object) -> bool:
        """A checkpoint ends."""
        del info
        return True

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        """Whether this rank saves what all have."""
        return dp_rank == 0

    def is_decoupled(self) -> bool:
        """Whether files are written later."""
        return False

    def preserves_storage_sharing(self) -> bool:
        """Whether a view is saved with all it is a view of; DeepSpeed copies the model then."""
        return False

    def cleanup(self) -> None:
        """Nothing is left behind."""


class FlashEngine:
    """Saves and restores what a DeepSpeed engine keeps. All ranks call the same methods."""

    def __init__(self, engine: Any, folder: str | os.PathLike[str], **settings: Any) -> None:
        """``settings`` are those of ``Checkpointer``.

        Raises:
            CheckpointError: the engine keeps files of its own, which nobody else can save.
        """
        for what, there in (
            ("experts (MoE)", engine.has_moe_layers),
            ("a pipeline", hasattr(engine, "is_first_stage")),
            ("an optimizer on NVMe", engine.zero_nvme_offload_optimizer()),
        ):
            if there:
                raise CheckpointError(f"an engine with {what} is saved by DeepSpeed alone")
        self.engine = engine
        self.checkpointer = Checkpointer(folder, **settings)
        self._random = f"rank-{self.checkpointer.ranks.rank}"

    def save(self, level: Level = "memory", client_state: dict[str, Any] | None = None) -> bool:
        """Save under the number of the engine's steps; as ``Checkpointer.save``.

        Raises:
            UnsavableError: DeepSpeed or ``client_state`` keep what would need code to load.
        """
        return self.checkpointer.save(self.engine.global_steps, self._state(client_state), level)

    def load(self) -> Restored | None:
        """Restore the newest step that is whole; ``None`` when there is none.

        Raises:
            CheckpointError: none could be loaded, or not into this engine.
        """
        load = self.checkpointer.load
        if (found := load({"ranks": 0, "client": b""})) is None:
            self.checkpointer.prepare(self._state(None))
            return None
        self._check(found.step, found.state["ranks"])
        names = self._own_files()
        rests = load({"files": {name: {"rest": b""} for name in names}}, found.step)
        assert rests is not None
        files = {name: _read(rests.state["files"][name]["rest"]) for name in names}
        tensors = {name: {"tensors": dict(_with_room(file))} for name, file in files.items()}
        whole = {"files": tensors, "random": {self._random: random_states()}}
        loaded = load(whole, found.step)
        assert loaded is not None
        for name, file in files.items():
            filled = loaded.state["files"][name]["tensors"]
            files[name] = _mapped(file, partial(_put_back, filled))
        self._give(files)
        set_random_states(loaded.state["random"][self._random])
        self.checkpointer.prepare(self._state(None))
        return Restored(found.step, _read(found.state["client"]))

    def wait(self, timeout_s: float = 1800.0) -> bool:
        """Wait until what was to go to storage is there; whether it is."""
        return self.checkpointer.wait(timeout_s)

    def close(self, finished: bool = True) -> None:
        """Let go; as ``Checkpointer.close``."""
        self.checkpointer.close(finished)

    def _state(self, client_state: dict[str, Any] | None) -> dict[str, Any]:
        """All that is to be saved; tensors in it are the engine's own, not copies."""
        with self._storage(_Files()) as storage:
            self.engine.save_checkpoint("/", tag=TAG, save_latest=False)
        files = dict[str, Any]()
        for name, file in storage.kept.items():
            tensors = dict[str, torch.Tensor]()
            rest = _mapped(file, partial(_leave_out, tensors))
            files[name] = {"rest": _written(name, rest), "tensors": tensors}
        return {
            "ranks": self.checkpointer.ranks.world,
            "client": _written("client_state", client_state or {}),
            "files": files,
            "random": {self._random: random_states()},
        }

    def _check(self, step: int, ranks: int) -> None:
        now = self.checkpointer.ranks.world
        if self.engine.zero_optimization() and ranks != now:
            raise CheckpointError(
                f"step {step} was saved by {ranks} ranks and there are {now}: ZeRO's partitions "
                "fit no other number; go on with as many, or begin in another folder"
            )

    def _own_files(self) -> list[str]:
        """The names under which DeepSpeed will ask this rank for its state."""
        paths = [self.engine._get_ckpt_name("/", TAG)]
        if self.engine.zero_optimization():
            paths.append(self.engine._get_zero_ckpt_name("/", TAG))
        return [Path(path).name for path in paths]

    def _give(self, files: dict[str, Any]) -> None:
        """Have the engine load these; it looks on a disk which of them there are."""
        with self._storage(_Files(files)), tempfile.TemporaryDirectory() as folder:
            for rank in range(self.engine.mp_world_size):
                name = self.engine._get_ckpt_name(folder, TAG, mp_placeholder=f"{rank:02d}")
                Path(name).parent.mkdir(exist_ok=True)
                Path(name).touch()
            path, _ = self.engine.load_checkpoint(folder, tag=TAG)
        if path is None:
            raise CheckpointError("DeepSpeed did not take the state that it had given")

    @contextmanager
    def _storage(self, files: _Files) -> Iterator[_Files]:
        """Let the engine save to ``files`` and load from there, without making folders."""
        own = self.engine.checkpoint_engine
        try:
            self.engine.checkpoint_engine = files
            for name in _IDLE:
                setattr(self.engine, name, lambda *_: True)
            yield files
        finally:
            self.engine.checkpoint_engine = own
            for name in _IDLE:
                delattr(self.engine, name)


def _leave_out(tensors: dict[str, torch.Tensor], path: str, tensor: torch.Tensor) -> torch.Tensor:
    """Take a tensor out of a file; what stays in its place has no memory."""
    tensors[path] = tensor.detach()
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _put_back(tensors: dict[str, torch.Tensor], path: str, _: torch.Tensor) -> torch.Tensor:
    return tensors[path]


def _with_room(file: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors that were left out of a file, by their paths, with memory to be filled."""
    found = list[tuple[str, torch.Tensor]]()

    def note(path: str, tensor: torch.Tensor) -> torch.Tensor:
        found.append((path, torch.empty(tensor.shape, dtype=tensor.dtype)))
        return tensor

    _mapped(file, note)
    return found


def _mapped(value: Any, change: Callable[[str, torch.Tensor], torch.Tensor], path: str = "") -> Any:
    """A copy of nested dictionaries and lists with all tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(path, value)
    if isinstance(value, dict):
        return type(value)(
            (key, _mapped(one, change, path + _step(key))) for key, one in value.items()
        )
    if type(value) in {list, tuple}:
        return type(value)(_mapped(one, change, path + _step(n)) for n, one in enumerate(value))
    return value


def _step(key: object) -> str:
    """One step of a path, such that no two paths are the same."""
    if not isinstance(key, str):
        return f"[{key!r}]"
    return f"/{key!r}" if _MARKS & set(key) else f"/{key}"


def _written(name: str, value: object) -> bytes:
    data = pickled(name, value)
    with torch.serialization.safe_globals(_data_classes()):
        check_loadable(name, value, data)
    return data


def _read(data: bytes) -> Any:
    with torch.serialization.safe_globals(_data_classes()):
        return safe_load(io.BytesIO(data))


def _data_classes() -> list[Any]:
    return [
        getattr(import_module(module), name) for module, names in _DATA.items() for name in names
    ]
