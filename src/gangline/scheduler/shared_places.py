"""Claims that several pods use, on paper: the first on a node takes one place there for all.

How such a claim stands on a node is told by how much of it is free: ``ATTACHED_THERE`` while it is
attached, ``CAN_BE_ATTACHED`` while a place is left for it, nothing else. Pods that use it take one
each, which is never enough to take it from one of these to the next. Pods that have several claims
need places for all of them at once: how many such pods a node takes is a column of its own.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gangline.scheduler.plugins.node_scores import Amounts

CAN_BE_ATTACHED = 2**40
ATTACHED_THERE = 2 * CAN_BE_ATTACHED
_BETWEEN = (CAN_BE_ATTACHED + ATTACHED_THERE) // 2


@dataclass(frozen=True, slots=True)
class Taking:
    """What a column that depends on places stands for."""

    place: int
    """The column of these places."""
    shared: tuple[int, ...] = ()
    """The columns of the shared claims that are used together; none: it is one of these itself."""
    own: int = 0
    """How many claims of its own each pod has beside them."""


def pods_taken(free: int, lacking: int, own: int) -> int:
    """Say how many pods a node takes that need places together.

    Args:
        free: free places.
        lacking: the claims that they share and that are not attached there.
        own: how many claims of its own each pod has.
    """
    left = free - lacking
    if not own:
        return CAN_BE_ATTACHED if left >= 0 else 0
    return max(0, left // own)


class SharedPlaces:
    """Keeps count of them while free amounts are spent.

    Args:
        free: the free amounts, by column and row; they are changed.
        takings: the columns that depend on places.
    """

    def __init__(self, free: Amounts, takings: Mapping[int, Taking]) -> None:
        self._free = free
        self._takings = takings
        self._places = {taking.place for taking in takings.values()}
        self._users: Counter[tuple[int, int, bool]] = Counter()
        """Of shared claims on paper, by column, row, and whether it is a plan only."""
        self._charged: set[tuple[int, int, bool]] = set()
        """For what of that places were taken."""

    def settle(self, row: int, columns: Iterable[int], count: int, planned: bool) -> None:
        """Bring a row up to date after columns were spent on it.

        Args:
            row: the row.
            columns: the columns.
            count: how many pods use them; below nothing: so many do no more.
            planned: not yet: places are set aside, but nothing is attached there for others.
        """
        touched = set()
        for column in columns:
            taking = self._takings.get(column)
            if taking is not None:
                touched.add(taking.place)
                if not taking.shared:
                    self._use((column, row, planned), taking.place, count)
            elif column in self._places:
                touched.add(column)
        if touched:
            for column, taking in self._takings.items():
                if taking.place in touched:
                    self._level(column, taking, row)

    def _level(self, column: int, taking: Taking, row: int) -> None:
        free = self._free
        if not taking.shared and free[column, row] >= _BETWEEN:
            return
        lacking = sum(int(free[each, row] < _BETWEEN) for each in taking.shared or (column,))
        free[column, row] = pods_taken(int(free[taking.place, row]), lacking, taking.own)

    def _use(self, user: tuple[int, int, bool], place: int, count: int) -> None:
        column, row, planned = user
        if planned and self._free[column, row] < _BETWEEN:
            # What plans take is no amount here: it is worked out from the places that are left.
            self._free[column, row] = 0
        self._users[user] += count
        if self._users[user] > 0 and self._free[column, row] < _BETWEEN:
            if user not in self._charged:
                self._charged.add(user)
                self._free[place, row] -= 1
            if not planned:
                self._free[column, row] = ATTACHED_THERE - self._users[user]
        elif self._users[user] <= 0 and user in self._charged:
            self._charged.remove(user)
            self._free[place, row] += 1
            if not planned:
                self._free[column, row] = 0
