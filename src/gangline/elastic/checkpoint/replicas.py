"""Finds replicas that have diverged: tensors, or parts of them, that should be equal on some ranks.

Data parallel training computes the same step on all ranks. A wrong seed, a broken device or a
missing exchange makes the replicas drift apart; a checkpoint has the value of one rank only, and
training goes on from it as if nothing had happened.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.distributed.tensor import DTensor

from gangline.elastic.checkpoint.format.plan import ReplicaRanks
from gangline.elastic.checkpoint.ranks import SaveGroup

log = logging.getLogger(__name__)
_NAMED = 3
"""Names of tensors in a warning; the others are counted."""


class ReplicaCheck:
    """Compares the replicas of all ranks by checksums."""

    def __init__(self, ranks: SaveGroup) -> None:
        self._ranks = ranks
        self.last_equal_step: int | None = None
        self.diverged: frozenset[str] = frozenset()
        """Names of the tensors that differed in the last check."""

    def check(
        self, step: int, replica_sets: Sequence[ReplicaRanks], replicas: Mapping[str, torch.Tensor]
    ) -> frozenset[str]:
        """Compare the replicas; all ranks call it together.

        Returns the names of the tensors that differ. A warning says when they become more, with the
        tensors, the ranks and the last step at which all were equal.

        Args:
            step: the step that is saved.
            replica_sets: the ranks that have replicas, the same on all ranks.
            replicas: the tensors of the sets to which this rank belongs, by name.
        """
        if self._ranks.world == 1 or not replica_sets:
            return frozenset()
        own = [
            n for n, replica_set in enumerate(replica_sets) if self._ranks.rank in replica_set.ranks
        ]
        names = [name for n in own for name in replica_sets[n].names]
        sums = dict(zip(names, checksums([replicas[name] for name in names]), strict=True))
        summaries: list[int | None] = [None] * len(replica_sets)
        for n in own:
            summaries[n] = _summary([sums[name] for name in replica_sets[n].names])
        equal = self._ranks.agreeing_places(summaries)
        if all(equal):
            self.last_equal_step, self.diverged = step, frozenset()
            return self.diverged
        by_rank = self._ranks.all_gather(sums)
        unequal = [
            replica_set
            for replica_set, is_equal in zip(replica_sets, equal, strict=True)
            if not is_equal
        ]
        diverged = _find_diverged(unequal, by_rank)
        if not diverged.keys() <= self.diverged and self._ranks.rank == 0:
            log.warning(self._message(step, diverged))
        self.diverged = frozenset(diverged)
        return self.diverged

    def _message(self, step: int, diverged: Mapping[str, "_Diverged"]) -> str:
        names = list(diverged)
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        ranks = sorted({rank for divergence in diverged.values() for rank in divergence.ranks})
        firsts = sorted(
            {rank for divergence in diverged.values() for rank in divergence.references}
        )
        plural = "s" if len(firsts) > 1 else ""
        since = (
            "it is the first step that was compared"
            if self.last_equal_step is None
            else f"they were equal at step {self.last_equal_step}"
        )
        return (
            f"replicas have diverged at step {step}: {', '.join(names[:_NAMED])}{more} of ranks "
            f"{_listed(ranks)} differ from rank{plural} {_listed(firsts)}; "
            f"{since}. The checkpoint has the values of one rank"
        )


@dataclass(slots=True)
class _Diverged:
    """Ranks with another value of a tensor than the first rank of their set, and those ranks."""

    ranks: set[int] = field(default_factory=set)
    references: set[int] = field(default_factory=set)


def _find_diverged(
    replica_sets: Sequence[ReplicaRanks], by_rank: Sequence[Mapping[str, int]]
) -> dict[str, _Diverged]:
    diverged: dict[str, _Diverged] = {}
    for replica_set in replica_sets:
        first, *others = replica_set.ranks
        for name in replica_set.names:
            if ranks := {rank for rank in others if by_rank[rank][name] != by_rank[first][name]}:
                divergence = diverged.setdefault(name, _Diverged())
                divergence.ranks |= ranks
                divergence.references.add(first)
    return dict(sorted(diverged.items()))


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def checksums(tensors: list[torch.Tensor]) -> list[int]:
    """Return a checksum of each tensor's bytes, with one transfer from its device.

    It is the sum of the bytes in words of 64 bits. It does not depend on positions, which suffices
    for replicas: those that drift apart differ almost everywhere.
    """
    sums = [_checksum(one) for one in tensors]
    by_device: dict[torch.device, list[int]] = {}
    for n, one in enumerate(sums):
        by_device.setdefault(one.device, []).append(n)
    compared = [0] * len(sums)
    for numbers in by_device.values():
        values = torch.stack([sums[n] for n in numbers]).tolist()
        for n, value in zip(numbers, values, strict=True):
            compared[n] = value
    return compared


def _checksum(tensor: torch.Tensor) -> torch.Tensor:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    whole = local.detach().resolve_conj().resolve_neg().contiguous()
    # A tensor of one element counts as contiguous whatever its stride.
    plain = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
    if plain.storage_offset() % 8:  # words must be aligned
        plain = plain.clone()
    words = plain.numel() // 8 * 8
    total = plain[words:].sum(dtype=torch.int64)
    if words:
        total = total + plain[:words].view(torch.int64).sum()
    return total


def _summary(sums: list[int]) -> int:
    """Return one number that depends on the position of each checksum."""
    return hash(tuple(sums)) >> 2
