"""Devices that are left over where the usual pods cannot use them, and how to leave fewer. Pure.

A node's free devices are a *fragment* to a kind of pod as far as no such pod can use them, for want
of more devices beside them, or of CPU and memory. Weighed by how common each kind is, that is the
node's fragmentation, and of nodes that will do the one is best where it grows least. The idea is
fragmentation gradient descent (Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
Workloads with Fragmentation Gradient Descent", USENIX ATC 2023), here for whole devices.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gangline.scheduler.model import Request
from gangline.scheduler.plugins.node_scores import Amounts, Scores, is_device

RAREST = 1 / 16
"""Kinds of pods that are fewer than this part of those that ask for devices do not count."""


@dataclass(frozen=True, slots=True)
class CommonPods:
    """The usual pods that ask for devices."""

    columns: NDArray[np.intp]
    """Of all resources that any of them asks for."""
    amounts: Amounts
    """What each kind (column) asks for of each resource (row)."""
    shares: NDArray[np.float64]
    """How common each kind is; together one."""
    devices: NDArray[np.int64]
    """How many devices each kind asks for."""
    device_columns: NDArray[np.intp]

    def fragments(self, free: Amounts) -> Scores:
        """Return how many free devices are of no use to the usual pod, for each column."""
        # A kind is bounded by what it asks for; a little of nothing bounds nobody.
        left = np.maximum(free[self.columns], 0)[:, None, :]
        wanted = self.amounts[:, :, None]
        fitting = np.where(wanted > 0, left // np.maximum(wanted, 1), _ENDLESS).min(axis=0)
        there = np.maximum(free[self.device_columns], 0).sum(axis=0)
        unused = there - fitting * self.devices[:, None]
        found: Scores = self.shares @ unused
        return found


_ENDLESS = np.int64(2**40)


class Popularity:
    """Counts pods by what they ask for, to know the usual ones.

    Shares are rounded to powers of two, so that they stay the same while pods come and go: whoever
    keeps scores for them need not work all of them out anew with each pod.
    """

    def __init__(self) -> None:
        self._counts: Counter[Request] = Counter()
        self._known: Mapping[Request, float] = {}
        self._arrays: CommonPods | None = None
        self._stale = False

    def note(self, request: Request, sign: int) -> None:
        """Count a pod (``sign`` -1: no longer)."""
        kind = _kind(request)
        if not kind:
            return
        self._counts[kind] += sign
        if not self._counts[kind]:
            del self._counts[kind]
        self._stale = True

    def shares(self) -> Mapping[Request, float]:
        """Return the usual kinds, and about how common each is."""
        total = self._counts.total()
        return {
            kind: 2.0 ** round(math.log2(count / total))
            for kind, count in sorted(self._counts.items())
            if count >= total * RAREST
        }

    def common(
        self, columns: Mapping[str, int], ensure: Callable[[Request], None]
    ) -> tuple[CommonPods | None, bool]:
        """Return the usual pods, and whether they have changed since this was last asked.

        Args:
            columns: the column of each resource.
            ensure: makes columns for the resources of a request.
        """
        shares = self.shares() if self._stale else self._known
        changed = shares != self._known
        self._stale = False
        if changed:
            for kind in shares:
                ensure(kind)
            self._known, self._arrays = shares, common_pods(shares, columns)
        return self._arrays, changed


def common_pods(shares: Mapping[Request, float], columns: Mapping[str, int]) -> CommonPods | None:
    """Return the usual pods as arrays; None: none asks for devices."""
    if not shares:
        return None
    names = sorted({name for kind in shares for name, _ in kind})
    kinds = [dict(kind) for kind in shares]
    total = sum(shares.values())
    return CommonPods(
        columns=np.array([columns[name] for name in names], dtype=np.intp),
        amounts=np.array([[kind.get(name, 0) for kind in kinds] for name in names], dtype=np.int64),
        shares=np.array([share / total for share in shares.values()]),
        devices=np.array(
            [sum(amount for name, amount in kind.items() if is_device(name)) for kind in kinds],
            dtype=np.int64,
        ),
        device_columns=np.array([columns[n] for n in names if is_device(n)], dtype=np.intp),
    )


@lru_cache(maxsize=4096)
def _kind(request: Request) -> Request:
    """What makes a pod's kind: devices, and CPU and memory beside them; nothing without devices."""
    kind = tuple(
        (name, amount)
        for name, amount in request
        if amount > 0 and (is_device(name) or name in {"cpu", "memory"})
    )
    return kind if any(is_device(name) for name, _ in kind) else ()
