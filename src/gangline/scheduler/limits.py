"""The amounts of a queue's limit, for its messages."""

from gangline.scheduler.queues import Account, QueueTree
from gangline.scheduler.reasons import Limit
from gangline.scheduler.shares import Vector


def limit_of(tree: QueueTree, account: Account, amount: Vector) -> Limit:
    """Return the amounts of the resources for which a queue's limit blocks a request."""
    over = account.used + account.held + amount > account.ceiling
    short = {name: c for name, c in tree.columns.items() if amount[c] > 0 and over[c]}
    return Limit(
        queue=account.facts.name,
        used={name: int(account.used[column]) for name, column in short.items()},
        held={name: int(account.held[column]) for name, column in short.items()},
        most={name: int(account.ceiling[column]) for name, column in short.items()},
        asked={name: int(amount[column]) for name, column in short.items()},
    )
