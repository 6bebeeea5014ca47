"""Volume attachments of claims that several pods share, in a scratch allocation.

The first pod on a node attaches the claim for all of them. The free amount of a claim's column on a
node encodes its state: ``ATTACHED_ON_NODE`` if it is attached, ``ATTACHABLE`` if the driver has a
free attachment for it, 0 otherwise. Each pod takes one, which never changes one state into the
next. Pods with several claims need all attachments together: how many such pods a node holds is a
column of its own.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gangline.scheduler.plugins.scores import Amounts

ATTACHABLE = 2**40
ATTACHED_ON_NODE = 2 * ATTACHABLE
_ATTACHED_THRESHOLD = (ATTACHABLE + ATTACHED_ON_NODE) // 2


@dataclass(frozen=True, slots=True)
class AttachmentColumn:
    """A column whose free amount depends on the attachments of a driver."""

    limit_column: int
    """The column of the driver's attachments."""
    claim_columns: tuple[int, ...] = ()
    """Columns of the shared claims that are used together; empty: the column is one of these
    itself.
    """
    own_claims: int = 0
    """Number of unshared claims of each pod."""


def pods_that_fit(free: int, lacking: int, own: int) -> int:
    """Return how many pods with these claims a node holds.

    Args:
        free: free attachments.
        lacking: shared claims that are not attached to the node.
        own: unshared claims of each pod.
    """
    left = free - lacking
    if not own:
        return ATTACHABLE if left >= 0 else 0
    return max(0, left // own)


class SharedAttachments:
    """Updates attachment columns while free amounts are spent.

    Args:
        free: the free amounts by column and row; changed in place.
        takings: the columns that depend on attachments.
    """

    def __init__(self, free: Amounts, takings: Mapping[int, AttachmentColumn]) -> None:
        self._free = free
        self._takings = takings
        self._places = {taking.limit_column for taking in takings.values()}
        self._users: Counter[tuple[int, int, bool]] = Counter()
        """Tentative users of shared claims, by column, row, and whether the use is only reserved.
        """
        self._charged: set[tuple[int, int, bool]] = set()
        """Uses for which an attachment was taken."""

    def update_row(self, row: int, columns: Iterable[int], count: int, planned: bool) -> None:
        """Update a row after columns were charged on it.

        Args:
            row: the row.
            columns: the charged columns.
            count: number of pods; negative: they are released.
            planned: True for a reservation: it takes attachments that other pods cannot share yet.
        """
        touched = set()
        for column in columns:
            taking = self._takings.get(column)
            if taking is not None:
                touched.add(taking.limit_column)
                if not taking.claim_columns:
                    self._count_users((column, row, planned), taking.limit_column, count)
            elif column in self._places:
                touched.add(column)
        if touched:
            for column, taking in self._takings.items():
                if taking.limit_column in touched:
                    self._update_column(column, taking, row)

    def detach(self, row: int, limit_column: int, claims: Iterable[int]) -> None:
        """Update a row after attachments were freed; ``claims`` are columns of detached claims."""
        for column in claims:
            self._free[column, row] = 0
        for column, taking in self._takings.items():
            if taking.limit_column == limit_column:
                self._update_column(column, taking, row)

    def _update_column(self, column: int, taking: AttachmentColumn, row: int) -> None:
        free = self._free
        if not taking.claim_columns and free[column, row] >= _ATTACHED_THRESHOLD:
            return
        lacking = sum(
            int(free[each, row] < _ATTACHED_THRESHOLD) for each in taking.claim_columns or (column,)
        )
        free[column, row] = pods_that_fit(
            int(free[taking.limit_column, row]), lacking, taking.own_claims
        )

    def _count_users(self, user: tuple[int, int, bool], place: int, count: int) -> None:
        column, row, planned = user
        if planned and self._free[column, row] < _ATTACHED_THRESHOLD:
            # A reservation has no amount here: it follows from the free attachments.
            self._free[column, row] = 0
        self._users[user] += count
        if self._users[user] > 0 and self._free[column, row] < _ATTACHED_THRESHOLD:
            if user not in self._charged:
                self._charged.add(user)
                self._free[place, row] -= 1
            if not planned:
                self._free[column, row] = ATTACHED_ON_NODE - self._users[user]
        elif self._users[user] <= 0 and user in self._charged:
            self._charged.remove(user)
            self._free[place, row] += 1
            if not planned:
                self._free[column, row] = 0
