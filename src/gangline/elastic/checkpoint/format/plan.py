"""All ranks agree on which rank saves what: PyTorch's planner decides, this module lays it out.

The planner gives each value to one owner, which writes it to storage. On every other node one rank
that has the value stores a copy too: a node's own memory then suffices to restore replicated state.
Small values that differ between ranks are saved for each rank (``torch_framing``). Ranks with the
same tensors, or with the same parts of sharded ones, form a ``ReplicaRanks``.

The agreement is reused while names, shapes and types stay the same, so a usual save needs only one
collective for a few numbers.
"""

import logging
import pickle
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan as RankPlan
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from gangline.elastic.checkpoint.errors import CheckpointError, UnsavableError
from gangline.elastic.checkpoint.format.manifest import (
    LayoutEntry,
    PartLayout,
    align_up,
    first_plan,
    next_branch,
    next_plan,
    part_file_name,
)
from gangline.elastic.checkpoint.format.structure import STRUCTURED, flatten_state, is_below
from gangline.elastic.checkpoint.format.torch_framing import (
    OF_A_RANK,
    check_loadable,
    differing_names,
    is_small_tensor,
    names_of_all,
    own_name,
    padded_capacity,
    parse_own_name,
    pickle_value,
    summarize,
    tensor_digest,
    torch_save_framing,
    value_digest,
)
from gangline.elastic.checkpoint.ranks import SaveGroup

Chunk = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and offset of the part of a tensor that a rank has."""
log = logging.getLogger(__name__)
StateSignature = tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class ReplicaRanks:
    """Ranks whose tensors of these names are replicas of each other."""

    ranks: tuple[int, ...]
    """At least two, ascending."""
    names: tuple[str, ...]


def chunk_of(value: object) -> Chunk | None:
    """Return the part of a tensor that this rank has; None if it has none or a summand."""
    if isinstance(value, DTensor):
        is_summand = any(placement.is_partial() for placement in value.placements)
        if is_summand or value.device_mesh.get_coordinate() is None:
            return None
        sizes, offset = compute_local_shape_and_global_offset(
            value.shape, value.device_mesh, value.placements
        )
        return (tuple(sizes), tuple(offset)) if 0 not in sizes else None
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), (0,) * value.dim()
    return None


def find_replica_sets(by_rank: Sequence[Mapping[str, Chunk]]) -> list[ReplicaRanks]:
    """Return the sets of ranks that have replicas, from the parts that each rank has."""
    holders: dict[tuple[str, Chunk], list[int]] = {}
    for rank, chunks in enumerate(by_rank):
        for key in chunks.items():
            holders.setdefault(key, []).append(rank)
    names: dict[tuple[int, ...], list[str]] = {}
    for (name, _), ranks in holders.items():
        if len(ranks) > 1:
            names.setdefault(tuple(ranks), []).append(name)
    return [ReplicaRanks(ranks, tuple(sorted(keys))) for ranks, keys in sorted(names.items())]


@dataclass(frozen=True, slots=True)
class SaveAgreement:
    """What this rank saves, as all ranks have agreed."""

    signature: StateSignature
    layout: PartLayout
    items: list[WriteItem]
    """The planner's items, in the order of the layout's entries."""


@dataclass(frozen=True, slots=True)
class FittedState:
    """A state of this rank and the agreement that fits it: the input of a save."""

    agreement: SaveAgreement
    value_of: Callable[[int], object]
    """Returns the value of the n-th entry of the layout."""
    pickled: dict[int, bytes]
    """The pickled values, by entry number; all other entries are tensors."""
    replicas: dict[str, torch.Tensor]
    """Tensors of this rank that are replicas, and that are not compared at each save."""
    replica_sets: Sequence[ReplicaRanks]
    """The ranks that have replicas, the same on all ranks."""


class SavePlan:
    """The save plan of one rank, reused as long as the structure of the state stays the same."""

    def __init__(self, ranks: SaveGroup, node: str) -> None:
        self.agreement: SaveAgreement | None = None
        self._ranks, self._node = ranks, node
        self.name = ranks.broadcast(first_plan(secrets.token_hex(8)))
        """The plan of the next save."""
        self._common: Collection[tuple[str, ...]] = ()
        self._pickled: dict[str, tuple[object, bytes]] = {}
        """The last pickled form of simple values, by name."""
        self._own: dict[str, int] = {}
        """Names whose values differ between ranks, with the first rank that has the name."""
        self._compared: frozenset[str] = frozenset()
        """Names of the values that all ranks have and that have always been equal."""
        self._replica_sets: list[ReplicaRanks] = []

    def declare_common(self, paths: Collection[tuple[str, ...]]) -> None:
        """Declare that values below these paths are equal on all ranks."""
        self._common = paths

    @property
    def is_first_rank(self) -> bool:
        return self._ranks.rank == 0

    def begin_branch(self) -> None:
        """Begin a branch: the next save does not continue the previous one. All ranks call it."""
        self._rename(next_branch(self.name))

    def renew(self) -> None:
        """Tell the next save of the same step from the previous one. All ranks call it."""
        self._rename(next_plan(self.name))

    def _rename(self, name: str) -> None:
        self.name = name
        if self.agreement is not None:
            layout = msgspec.structs.replace(self.agreement.layout, plan=name)
            self.agreement = replace(self.agreement, layout=layout)

    def agree(self, state: dict[str, Any]) -> SaveAgreement:
        """Agree with the other ranks on a layout for this state; all ranks call it together."""
        return self._agree(create_planner(state, self._ranks.rank == 0, self._common), {})

    def fit(self, state: dict[str, Any]) -> FittedState:
        """Fit the plan to a state; all ranks call it together.

        If the state of any rank has changed its structure, a pickled value has outgrown its entry,
        or values have become different between ranks, all ranks agree again. Otherwise this costs
        one collective for a few numbers. Raises UnsavableError: a value cannot be pickled, or
        loading it would run code.
        """
        planner = create_planner(state, self._ranks.rank == 0, self._common)
        fresh: dict[str, bytes] = {}
        summary = summarize(
            digest
            for name, digest in self._digests(planner, fresh).items()
            if name in self._compared
        )
        self._rename_own(planner)
        agreement, fitted = self.agreement, None
        if agreement is not None and agreement.signature == state_signature(planner):
            fitted = self._fitted(planner, agreement, fresh)
        if not self._ranks.all_agree(fitted is not None, summary):
            planner = create_planner(state, self._ranks.rank == 0, self._common)
            fitted = self._fitted(planner, self._agree(planner, fresh), fresh)
        assert fitted is not None, "new entries hold their values"
        return fitted

    def _agree(self, planner: DefaultSavePlanner, fresh: dict[str, bytes]) -> SaveAgreement:
        digests = self._digests(planner, fresh)
        chunks = {
            name: chunk
            for name, value in planner.state_dict.items()
            if name not in digests and (chunk := chunk_of(value))
        }
        gathered = self._ranks.all_gather((digests, chunks))
        by_rank = [own for own, _ in gathered]
        differing = differing_names(by_rank)
        if new := sorted(differing.keys() - self._own.keys()):
            log.info(f"saved for each rank, since they differ between ranks: {', '.join(new)}")
        self._own |= differing
        self._compared = names_of_all(by_rank) - self._own.keys()
        self._replica_sets = find_replica_sets([chunks for _, chunks in gathered])
        self._rename_own(planner)
        if self.agreement is not None:
            self.name = next_plan(self.name)
        self.agreement = agree_on_layout(self._ranks, self._node, planner, self.name)
        return self.agreement

    def _digests(self, planner: DefaultSavePlanner, fresh: dict[str, bytes]) -> dict[str, int]:
        """Return digests of the values that are compared; values that cannot be saved have none."""
        if self._ranks.world == 1:
            return {}
        digests = {}
        for name, value in planner.state_dict.items():
            if OF_A_RANK.search(name) or is_below(
                tuple(planner.mappings.get(name, ())), self._common
            ):
                continue
            if is_small_tensor(value):
                digests[name] = tensor_digest(name, value)
            elif not isinstance(value, torch.Tensor):
                try:
                    fresh[name] = self._pickle(name, value)
                except UnsavableError:
                    continue  # the agreement reports it on all ranks
                digests[name] = value_digest(name, fresh[name])
        return digests

    def _rename_own(self, planner: DefaultSavePlanner) -> None:
        """Give the values that are this rank's own their names in the checkpoint."""
        rank = self._ranks.rank
        renamed = {
            name: own_name(name, rank)
            for name, first in self._own.items()
            if first != rank and name in planner.state_dict
        }
        if not renamed:
            return
        planner.state_dict = {
            renamed.get(name, name): value for name, value in planner.state_dict.items()
        }
        planner.mappings = {
            renamed.get(name, name): (renamed[name],) if name in renamed else path
            for name, path in planner.mappings.items()
        }

    def _fitted(
        self, planner: DefaultSavePlanner, agreement: SaveAgreement, fresh: Mapping[str, bytes]
    ) -> FittedState | None:
        """Pickle the values that are no tensors; return None if one has outgrown its entry."""
        value_of, pickled = value_lookup(planner, agreement), dict[int, bytes]()
        for number, entry in enumerate(agreement.layout.entries):
            if entry.chunk is None:
                name = (parse_own_name(entry.key) or (entry.key,))[0]
                data = fresh.get(name)
                if data is None:
                    data = self._pickle(entry.key, value_of(number))
                if len(data) > entry.length:
                    return None
                pickled[number] = data
        replicas = {
            name: planner.state_dict[name]
            for replica_set in self._replica_sets
            if self._ranks.rank in replica_set.ranks
            for name in replica_set.names
        }
        return FittedState(agreement, value_of, pickled, replicas, self._replica_sets)

    def _pickle(self, key: str, value: object) -> bytes:
        """Pickle a value; an unchanged simple one is not pickled again."""
        is_simple = isinstance(value, int | float | str | bool | None)
        pickled = self._pickled.get(key)
        if is_simple and pickled and type(pickled[0]) is type(value) and pickled[0] == value:
            return pickled[1]
        data = pickle_value(key, value)
        if is_simple:
            self._pickled[key] = (value, data)
        return data


def value_lookup(planner: DefaultSavePlanner, agreement: SaveAgreement) -> Callable[[int], object]:
    """Return a function that finds the value of an entry in the planner's state."""

    def find(number: int) -> object:
        index = agreement.items[number].index
        value = planner.state_dict[index.fqn]
        # A plain tensor is one entry; PyTorch's own lookup would search its shards.
        return value if type(value) is torch.Tensor else planner.lookup_object(index)

    return find


def create_planner(
    state: dict[str, Any], first: bool, fixed: Collection[tuple[str, ...]] = ()
) -> DefaultSavePlanner:
    """Return PyTorch's planner for a state whose names below ``fixed`` paths are PyTorch's."""
    planner = DefaultSavePlanner()
    planner.set_up_planner({}, is_coordinator=first)
    planner.state_dict, planner.mappings = flatten_state(state, fixed)
    planner.mappings[STRUCTURED] = (STRUCTURED,)
    return planner


def state_signature(planner: DefaultSavePlanner) -> StateSignature:
    """Return what must not change while a layout is in use: names, shapes, types, placements."""
    return tuple(_kind(key, value) for key, value in planner.state_dict.items())


def _kind(key: str, value: object) -> tuple[object, ...]:
    if isinstance(value, DTensor):
        return key, value.shape, value.dtype, value.placements, value.device_mesh.shape
    if isinstance(value, torch.Tensor):
        return key, value.shape, value.dtype
    return key, type(value).__name__


def agree_on_layout(
    ranks: SaveGroup, node: str, planner: DefaultSavePlanner, name: str
) -> SaveAgreement:
    """Create the save agreement ``name``; all ranks call it together.

    Raises UnsavableError: a value of some rank cannot be saved; all ranks raise.
    """
    local = _local_plan(ranks, planner)
    local_plans = ranks.all_gather((node, local))
    metadata: Metadata | None = None
    shares: list[tuple[RankPlan, list[WriteItem]]] | None = None
    problem: str | None = None
    if ranks.rank == 0:
        plans = [plan for _, plan in local_plans]
        try:
            # The planner modifies the lists it receives, but the copies need the original ones.
            owned, metadata = planner.create_global_plan(
                [replace(plan, items=list(plan.items)) for plan in plans]
            )
            copies = assign_node_copies([name for name, _ in local_plans], plans, owned)
            shares = list(zip(owned, copies, strict=True))
        except (ValueError, RuntimeError) as error:
            problem = str(error)
    if problem := ranks.broadcast(problem):
        raise CheckpointError(f"the ranks' states do not form one checkpoint: {problem}")
    own_plan, node_copies = ranks.scatter(shares)
    items = [*planner.finish_plan(own_plan).items, *node_copies]
    entries = lay_out_entries(planner, items)
    parts = ranks.all_gather((entries, len(own_plan.items)))
    blob = b""
    if metadata is not None:
        metadata.storage_data = build_storage_data(parts)
        blob = pickle.dumps(metadata)
    blob = ranks.broadcast(blob)
    holders = holder_sets(parts)
    layout = PartLayout(
        name,
        ranks.rank,
        ranks.world,
        entries,
        len(own_plan.items),
        blob,
        holders,
        is_sole_holder(ranks.rank, holders, [where for where, _ in local_plans]),
    )
    return SaveAgreement(state_signature(planner), layout, items)


def _local_plan(ranks: SaveGroup, planner: DefaultSavePlanner) -> RankPlan:
    """Return this rank's plan; if it fails on one rank, it fails on all."""
    problem = None
    plan = RankPlan([])
    try:
        _check_values(planner)
        plan = planner.create_local_plan()
    except (UnsavableError, ValueError, TypeError, RuntimeError) as error:
        problem = str(error)
    for rank, reason in enumerate(ranks.all_gather(problem)):
        if reason:
            raise UnsavableError(reason if ranks.world == 1 else f"rank {rank}: {reason}")
    return plan


def _check_values(planner: DefaultSavePlanner) -> None:
    for key, value in planner.state_dict.items():
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or value.is_quantized or value.is_meta:
                raise UnsavableError(f"{key!r} is a sparse, quantized or meta tensor")
        else:
            check_loadable(key, value, pickle_value(key, value))


def assign_node_copies(
    nodes: Sequence[str], local_plans: Sequence[RankPlan], owned: Sequence[RankPlan]
) -> list[list[WriteItem]]:
    """Return for each rank the items it stores because their owner is on another node."""
    at = {item.index: nodes[rank] for rank, plan in enumerate(owned) for item in plan.items}
    load = [sum(map(_weight, plan.items)) for plan in owned]
    candidates: dict[tuple[str, MetadataIndex], list[tuple[int, WriteItem]]] = {}
    for rank, plan in enumerate(local_plans):
        for item in plan.items:
            if at[item.index] != nodes[rank]:
                candidates.setdefault((nodes[rank], item.index), []).append((rank, item))
    copies: list[list[WriteItem]] = [[] for _ in nodes]
    for ranked_items in candidates.values():
        rank, item = min(ranked_items, key=lambda pair: (load[pair[0]], pair[0]))
        load[rank] += _weight(item)
        copies[rank].append(item)
    return copies


def _weight(item: WriteItem) -> int:
    return item.tensor_storage_size() or 1


def lay_out_entries(planner: DefaultSavePlanner, items: Sequence[WriteItem]) -> list[LayoutEntry]:
    """Lay out a rank's items one after the other."""
    entries: list[LayoutEntry] = []
    at = 0
    for item in items:
        key, chunk = item.index.fqn, item.index.offset
        if item.type is WriteItemType.BYTE_IO:
            size = align_up(
                padded_capacity(len(pickle_value(key, planner.lookup_object(item.index))))
            )
            entry = LayoutEntry(key, None, at, size, size, 0, 0)
        else:
            assert item.tensor_data is not None
            framing = torch_save_framing(
                item.tensor_data.properties.dtype, tuple(item.tensor_data.chunk.sizes)
            )
            entry = LayoutEntry(
                key,
                tuple(chunk) if chunk is not None else (),
                at,
                align_up(framing.length),
                framing.length,
                len(framing.before),
                framing.raw_length,
            )
        entries.append(entry)
        at += entry.length
    return entries


def build_storage_data(
    parts: Sequence[tuple[list[LayoutEntry], int]],
) -> dict[MetadataIndex, _StorageInfo]:
    """Return the file and the position of each entry, for PyTorch's reader."""
    return {
        MetadataIndex(entry.key, entry.chunk): _StorageInfo(
            part_file_name(rank), entry.offset, entry.archive
        )
        for rank, (entries, owned) in enumerate(parts)
        for entry in entries[:owned]
    }


def holder_sets(parts: Sequence[tuple[list[LayoutEntry], int]]) -> list[list[int]]:
    """Return the distinct sets of ranks that hold the same entries."""
    holders: dict[tuple[str, tuple[int, ...] | None], list[int]] = {}
    for rank, (entries, _) in enumerate(parts):
        for entry in entries:
            holders.setdefault((entry.key, entry.chunk), []).append(rank)
    return [list(ranks) for ranks in sorted({tuple(ranks) for ranks in holders.values()})]


def is_sole_holder(rank: int, holders: Sequence[Sequence[int]], nodes: Sequence[str]) -> bool:
    """True if the rank holds an entry that no other node holds."""
    return any(rank in ranks and len({nodes[one] for one in ranks}) == 1 for ranks in holders)
