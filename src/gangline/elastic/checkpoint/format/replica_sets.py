"""Which ranks have replicas of the same tensors, or of the same parts of sharded ones.

A tensor is a replica of those that have its name, and a part of a sharded tensor of those with its
name and place. In data parallel training all ranks form one set; on a device mesh of replicas and
shards (HSDP) there is one set for each shard.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

Chunk = tuple[tuple[int, ...], tuple[int, ...]]
"""Sizes and offset of the part of a tensor that a rank has."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
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


def find_replica_sets(by_rank: Sequence[Mapping[str, Chunk]]) -> list[ReplicaSet]:
    """Return the sets of ranks that have replicas, from the parts that each rank has."""
    holders: dict[tuple[str, Chunk], list[int]] = {}
    for rank, chunks in enumerate(by_rank):
        for key in chunks.items():
            holders.setdefault(key, []).append(rank)
    names: dict[tuple[int, ...], list[str]] = {}
    for (name, _), ranks in holders.items():
        if len(ranks) > 1:
            names.setdefault(tuple(ranks), []).append(name)
    return [ReplicaSet(ranks, tuple(sorted(found))) for ranks, found in sorted(names.items())]
