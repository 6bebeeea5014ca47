"""The ``torch.distributed.checkpoint`` side of loading: a safe planner, and a reader over a source.

``FlashReader`` works with plain ``torch.distributed.checkpoint.load`` too. The checkpointer uses it
with ``SafePlanner``, which loads pickled values with the restricted unpickler.
"""

import io
import logging
import os
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from gangline.elastic.checkpoint.format.structure import (
    STRUCTURED,
    Path,
    existing_key,
    flatten_state,
    get_nested,
    is_below,
    is_number,
    restore_keys,
    restore_order,
)
from gangline.elastic.checkpoint.format.torch_framing import (
    OF_A_RANK,
    is_plain_memory,
    own_name,
    parse_own_name,
    safe_unpickle,
    tensor_bytes,
)
from gangline.elastic.checkpoint.restore.source import (
    EntryKey,
    EntryLocation,
    EntryReader,
    RestoreSource,
    StorageSource,
    entry_key,
    tensor_from_bytes,
)
from gangline.elastic.checkpoint.storage.target import open_target

log = logging.getLogger(__name__)
READERS = max(2, min(4, len(os.sched_getaffinity(0))))
"""Threads that read, verify and copy. Memory does not get faster with more, disks hardly."""
READ_RUN_BYTES, LAST_READ_RUN_BYTES = 1 << 26, 1 << 23
"""Bytes that one of them reads from front to back before it takes the next, at first and at the
end: the last ones are short, so that no thread reads on alone.
"""
ReadTarget = tuple[ReadItem, torch.Tensor]
"""An item to read, and the tensor to read it into."""


class SafePlanner(DefaultLoadPlanner):
    """PyTorch's planner for loading in place, except that pickled values run no code."""

    adds_ranks = True
    """Whether a rank that did not exist when the checkpoint was saved retains its values where
    those of other ranks differed."""

    def __init__(
        self,
        rank: int = 0,
        optional: Sequence[tuple[str, ...]] = (),
        fixed: Sequence[tuple[str, ...]] = (),
        elsewhere: Collection[str] = (),
    ) -> None:
        """Create the planner.

        Args:
            rank: of this process.
            optional: each value directly below one of these paths may be missing.
            fixed: paths below which the structure is that of the state, not of the checkpoint.
            elsewhere: names in the states of other ranks.
        """
        super().__init__()
        self._rank, self._optional = rank, optional
        self._fixed, self._elsewhere = fixed, elsewhere
        self._has_empty = False
        """Whether the checkpoint records empty dictionaries, unlike PyTorch's own planner."""
        self._adopted = set[str]()
        """Names of values that the state did not have."""

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Flatten the state as it was flattened for the save."""
        self.flatten_state_dict = self.flatten_sharded_tensors = False  # these copy and lose
        super().set_up_planner(state_dict, metadata, is_coordinator)
        self.flatten_state_dict = True
        self.state_dict, self.mappings = flatten_state(self.state_dict, self._fixed)

    def create_local_plan(self) -> LoadPlan:
        """Plan what to read.

        Missing random states of new ranks are ignored; missing optional values are removed. What
        differed between ranks is read from the value of this rank.
        """
        assert self.metadata is not None
        saved_names = self.metadata.state_dict_metadata
        grown = self._adopt_structure(saved_names)
        self._select_own(saved_names)
        for name, value in self.state_dict.items():
            if (path := grown.get((parse_own_name(name) or (name,))[0])) is not None:
                set_nested(self.original_state_dict, path, value)
        missing = self._missing_groups(saved_names)
        for group in missing:
            remove_nested(self.original_state_dict, group)
        self.state_dict = {
            key: value
            for key, value in self.state_dict.items()
            if self._group_of(key) not in missing
            and (key in saved_names or not OF_A_RANK.search(key))
        }
        # Not the inherited method, which would take the names of other ranks' values for a sign of
        # PyTorch before 2.4 and flatten the state in its way.
        return create_default_local_load_plan(self.state_dict, self.metadata)

    def _adopt_structure(self, saved_names: Mapping[str, object]) -> dict[str, Path]:
        """Give dictionaries and lists the structure that they had when they were saved.

        Returns the names of tensors that the state does not have yet, with their paths.
        """
        saved = self._saved_paths(saved_names)
        taken = set(saved.values())
        inner = {path[:end]: path[end] for path in taken for end in range(1, len(path))}
        removed: set[Path] = set()
        # A dictionary that was empty on some ranks only: others have saved what is in it.
        saved = {name: path for name, path in saved.items() if path not in inner}
        for name in list(self.state_dict):
            path = self.mappings[name]
            if name in saved_names and path in inner:
                del self.state_dict[name]
                continue
            is_adopted = not OF_A_RANK.search(name) and not is_below(path, self._fixed)
            if is_adopted and (name not in saved_names or saved.get(name, path) != path):
                removed |= self._release(name, path, taken, inner)
        for path in sorted(removed):
            remove_nested(self.original_state_dict, path)
        if removed:
            names = ", ".join(".".join(map(str, path)) for path in sorted(removed))
            log.warning(f"removed, because the checkpoint does not have it: {names}")
        self._adopted = saved.keys() - self.state_dict.keys()
        tensors = dict[str, Path]()
        for name, path in saved.items():
            kind = saved_names[name]
            is_new = name not in self.state_dict
            if is_new:
                self.state_dict[name], self.mappings[name] = None, path
            if isinstance(kind, TensorStorageMetadata) and (
                is_new or not isinstance(self.state_dict[name], torch.Tensor)
            ):
                self.state_dict[name] = torch.empty(kind.size, dtype=kind.properties.dtype)
                tensors[name] = path
        return tensors

    def _release(
        self, name: str, path: Path, taken: Container[Path], inner: Mapping[Path, str | int]
    ) -> set[Path]:
        """Forget a name that the checkpoint does not have; return the path to remove, if any.

        ``taken`` are the paths of values in the checkpoint, ``inner`` those of dictionaries and
        lists, with a key. A tensor without a value remains, and is an error.
        """
        value = self.state_dict[name]
        for end in range(1, len(path) + 1):
            above = path[:end]
            if above in taken and end < len(path):
                break  # one value in the checkpoint, a dictionary or list here
            if above in inner:
                if end < len(path) and isinstance(inner[above], int) == isinstance(path[end], int):
                    continue
                self._empty(above, inner[above])
                break
            if isinstance(value, Mapping) and not value and not self._has_empty:
                break  # PyTorch does not save empty dictionaries
            is_numbered = isinstance(path[end - 1], int) or is_number(str(path[end - 1]))
            if end == 1 or (isinstance(value, torch.Tensor) and not is_numbered):
                return set()
            del self.state_dict[name]
            return {above}
        del self.state_dict[name]
        return set()

    def _empty(self, path: Path, key: str | int) -> None:
        """Replace what is at ``path`` by an empty dictionary or list for ``key``."""
        found = get_nested(self.original_state_dict, path)
        if isinstance(found, list if isinstance(key, int) else MutableMapping):
            found.clear()
        else:
            set_nested(self.original_state_dict, path, None)

    def _saved_paths(self, saved_names: Iterable[str]) -> dict[str, Path]:
        """Return the names in the checkpoint whose structure is adopted, and their paths."""
        assert self.metadata is not None
        paths: Mapping[str, Path] = self.metadata.planner_data or {}
        self._has_empty = STRUCTURED in paths
        keys = {path[0] for path in self.mappings.values()}
        return {
            name: path
            for name in saved_names
            if (path := tuple(paths.get(name, (name,))))[0] in keys
            and not parse_own_name(name)
            and not OF_A_RANK.search(name)
            and not is_below(path, self._fixed)
            and (name in self.state_dict or name not in self._elsewhere)
        }

    def _select_own(self, saved_names: Iterable[str]) -> None:
        """Replace names whose values differed between ranks by the names of this rank's values."""
        differed = {parsed[0] for parsed in map(parse_own_name, saved_names) if parsed}
        names = {
            name: own
            for name in differed & self.state_dict.keys()
            if (own := own_name(name, self._rank)) in saved_names
        }
        for name, own in names.items():
            self.state_dict[own] = self.state_dict.pop(name)
            self.mappings[own] = self.mappings.pop(name, (name,))
        if self._rank and self.adds_ranks:
            for name in differed & self.state_dict.keys():
                del self.state_dict[name]

    def _missing_groups(self, saved_names: Container[str]) -> set[tuple[str | int, ...]]:
        """Return the paths of optional groups of which the checkpoint has no value."""
        groups: dict[tuple[str | int, ...], bool] = {}
        for key in self.state_dict:
            if (group := self._group_of(key)) is not None:
                groups[group] = groups.get(group, False) or key in saved_names
        return {group for group, is_known in groups.items() if not is_known}

    def _group_of(self, key: str) -> tuple[str | int, ...] | None:
        path = tuple(self.mappings.get(key, (key,)))
        for prefix in self._optional:
            if path[: len(prefix)] == prefix and len(path) > len(prefix):
                return path[: len(prefix) + 1]
        return None

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put a pickled value into the state."""
        loaded = safe_unpickle(value)
        path = self.mappings.get(read_item.dest_index.fqn, (read_item.dest_index.fqn,))
        set_nested(self.original_state_dict, path, loaded)

    def finish(self) -> None:
        """Complete the state after all values have been read."""
        assert self.metadata is not None
        paths = self.metadata.planner_data or {}
        restore_order(self.original_state_dict, self._adopted, paths)
        restore_keys(self.original_state_dict, paths)


class FullLoadPlanner(SafePlanner):
    """Loads everything that was saved, of own values those of this rank, into an empty dictionary.

    A rank that did not exist when the checkpoint was saved gets the values of the first one.
    """

    adds_ranks = False

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Fill the dictionary with empty tensors of the saved shapes."""
        assert metadata is not None
        paths = metadata.planner_data or {}
        for key, kind in metadata.state_dict_metadata.items():
            if parse_own_name(key):
                continue
            value: object = None
            if isinstance(kind, TensorStorageMetadata):
                value = torch.empty(kind.size, dtype=kind.properties.dtype)
            set_nested(state_dict, paths.get(key, (key,)), value)
        super().set_up_planner(state_dict, metadata, is_coordinator)


def set_nested(state: Any, path: Sequence[str | int], value: object) -> None:
    """Set a value in nested dictionaries and lists, creating missing levels.

    PyTorch saves integer keys as text; an existing integer key is found.
    """
    for name, following in pairwise(path):
        at = existing_key(state, name)
        if isinstance(state, list):
            assert isinstance(at, int)
            state.extend([None] * (at + 1 - len(state)))
            missing = state[at] is None
        else:
            missing = at not in state or state[at] is None
        if missing:
            state[at] = [] if isinstance(following, int) else {}
        state = state[at]
    last = existing_key(state, path[-1])
    if isinstance(state, list):
        assert isinstance(last, int)
        state.extend([None] * (last + 1 - len(state)))
    before = state.get(last) if isinstance(state, Mapping) else None
    if isinstance(value, dict) and isinstance(before, MutableMapping):
        before.clear()  # the container remains, with its class
        before.update(value)
        return
    state[last] = value


def remove_nested(state: Any, path: Sequence[str | int]) -> None:
    """Remove a value from nested dictionaries, or the end of a list from there on."""
    for name in path[:-1]:
        state = state[existing_key(state, name)]
    last = existing_key(state, path[-1])
    if isinstance(state, list):
        assert isinstance(last, int)
        del state[last:]
    else:
        del state[last]


class FlashReader(StorageReader):
    """Reads one step from memory or storage for PyTorch's planners."""

    def __init__(self, source: RestoreSource) -> None:
        super().__init__()
        self.source = source

    @classmethod
    def of_step(cls, folder: str, step: int) -> "FlashReader":
        """Return a reader of a committed step in a folder or URL."""
        return cls(StorageSource(open_target(folder), step))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: the source was chosen at construction."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Accept any name; it is not used."""
        del checkpoint_id
        return True

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self.source.metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None: ...

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read, verify and store everything that the plan names.

        Raises CorruptError: something is damaged or missing. Part of the state may be overwritten.
        """
        self.source.ensure_available([entry_key(item.storage_index) for item in plan.items])
        tensors = [
            (item, planner.resolve_tensor(item).detach())
            for item in plan.items
            if item.type is not LoadItemType.BYTE_IO
        ]
        sizes = _chunk_sizes(self.source.metadata)
        pool = ThreadPoolExecutor(READERS, thread_name_prefix="read")
        try:
            waiting = [
                pool.submit(self._fill_row, row, sizes)
                for row in split_reads(tensors, self._where, READERS)
            ]
            self._load_bytes(plan, planner)
            for filled in waiting:
                filled.result()
        finally:
            pool.shutdown(cancel_futures=True)
        for item, target in tensors:
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _where(self, read: ReadTarget) -> EntryLocation:
        return self.source.locate(entry_key(read[0].storage_index))

    def _load_bytes(self, plan: LoadPlan, planner: LoadPlanner) -> None:
        with self.source.open_reader() as row:
            for item in plan.items:
                if item.type is LoadItemType.BYTE_IO:
                    raw = row.raw(entry_key(item.storage_index))
                    planner.load_bytes(item, io.BytesIO(raw))
                    row.release(raw)

    def _fill_row(self, row: Sequence[ReadTarget], sizes: dict[EntryKey, torch.Size]) -> None:
        with self.source.open_reader() as reading:
            for item, target in row:
                self._fill(reading, item, target, sizes)

    def _fill(
        self,
        row: EntryReader,
        item: ReadItem,
        target: torch.Tensor,
        sizes: dict[EntryKey, torch.Size],
    ) -> None:
        """Store a tensor, or the requested part of it."""
        key = entry_key(item.storage_index)
        if (straight := _direct_memory(item, target, sizes[key], self.source.metadata)) is not None:
            row.copy(key, straight)
            return
        raw = row.raw(key)
        tensor = tensor_from_bytes(raw, self.source.metadata, item.storage_index, sizes)
        for dimension, (start, length) in enumerate(
            zip(item.storage_offsets, item.lengths, strict=True)
        ):
            tensor = tensor.narrow(dimension, start, length)
        target.copy_(tensor)
        row.release(raw)


def split_reads(
    reads: Sequence[ReadTarget], where: Callable[[ReadTarget], EntryLocation], readers: int
) -> list[list[ReadTarget]]:
    """Split the reads into runs of adjacent entries, which the readers take from a common queue."""
    left = sum(where(one).length for one in reads)
    least = min(LAST_READ_RUN_BYTES, -(-left // readers))
    rows: list[list[ReadTarget]] = []
    bytes_left = 0
    for one in sorted(reads, key=where):
        if bytes_left <= 0:
            rows.append([])
            bytes_left = min(READ_RUN_BYTES, max(least, left // (2 * readers)))
        rows[-1].append(one)
        bytes_left -= where(one).length
        left -= where(one).length
    return rows


def _direct_memory(
    item: ReadItem, target: torch.Tensor, size: torch.Size, metadata: Metadata
) -> memoryview | None:
    """Return the target's memory if the complete chunk can be read into it directly."""
    kind = metadata.state_dict_metadata[item.storage_index.fqn]
    assert isinstance(kind, TensorStorageMetadata)
    if (
        is_plain_memory(target)
        and target.dtype == kind.properties.dtype
        and target.shape == size
        and target.numel() > 0
    ):
        return tensor_bytes(target)
    return None


def _chunk_sizes(metadata: Metadata) -> dict[EntryKey, torch.Size]:
    return {
        (key, tuple(chunk.offsets)): chunk.sizes
        for key, kind in metadata.state_dict_metadata.items()
        if isinstance(kind, TensorStorageMetadata)
        for chunk in kind.chunks
    }


def load_state(
    source: RestoreSource,
    state: dict[str, Any] | None,
    optional: Sequence[tuple[str, ...]] = (),
    rank: int = 0,
    fixed: Sequence[tuple[str, ...]] = (),
    elsewhere: Collection[str] = (),
) -> dict[str, Any]:
    """Load a step in place, or everything that was saved if no state is given; return the state.

    Values that differed between ranks are those of ``rank``. What is directly below an ``optional``
    path and not in the checkpoint is removed from the state. Everywhere except below ``fixed``
    paths dictionaries and lists get the structure that they had when they were saved; names that
    other ranks have ``elsewhere`` are left to them.

    Raises:
        CorruptError: something is damaged or missing.
        RuntimeError: the state has names that the checkpoint does not have.
        ValueError: shapes differ.
    """
    planner = (
        SafePlanner(rank, optional, fixed, elsewhere)
        if state is not None
        else FullLoadPlanner(rank)
    )
    filled: dict[str, Any] = state if state is not None else {}
    planner.set_up_planner(filled, source.metadata, is_coordinator=True)
    plan = planner.finish_plan(planner.create_local_plan())
    FlashReader(source).read_data(plan, planner)
    planner.finish()
    return filled
