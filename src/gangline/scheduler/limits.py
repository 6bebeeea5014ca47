"""The amounts of a queue's limit, for its messages."""

from gangline.scheduler.queues import QueueAttributes, QueueTree
from gangline.scheduler.reasons import QueueLimit
from gangline.scheduler.shares import Vector


def queue_limit(tree: QueueTree, account: QueueAttributes, amount: Vector) -> QueueLimit:
    """Return the amounts of the resources for which a queue's limit blocks a request."""
    over = account.used + account.reserved + amount > account.limit
    short = {name: c for name, c in tree.columns.items() if amount[c] > 0 and over[c]}
    return QueueLimit(
        queue=account.info.name,
        used={name: int(account.used[column]) for name, column in short.items()},
        reserved={name: int(account.reserved[column]) for name, column in short.items()},
        limit={name: int(account.limit[column]) for name, column in short.items()},
        requested={name: int(amount[column]) for name, column in short.items()},
    )
