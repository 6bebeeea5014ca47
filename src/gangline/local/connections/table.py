"""The table of open connections, and which of them is closed when there are too many."""

from collections import Counter, OrderedDict
from collections.abc import Callable

from gangline.local import limits


class ClientConnection:
    """One connection, from its acceptance on."""

    __slots__ = ("_table", "close", "peer", "user")

    def __init__(self, table: "ConnectionTable", peer: str, close: Callable[[], None]) -> None:
        self._table = table
        self.peer = peer
        self.close = close
        """Closes the connection without waiting for its client."""
        self.user = ""
        """The user of the first authenticated request; empty before."""

    def authenticate(self, user: str) -> int:
        """Record that a request had valid credentials.

        Returns the number of the user's connections if this is the first such request, else 0.
        """
        if self.user:
            return 0
        self._table.remove(self)
        self.user = user
        self._table.users[user] += 1
        return self._table.users[user]

    def end(self) -> None:
        """Record that the connection is closed."""
        if not self.user:
            self._table.remove(self)
        else:
            self._table.users[self.user] -= 1
            if not self._table.users[self.user]:
                del self._table.users[self.user]


class ConnectionTable:
    """The open connections of one server."""

    def __init__(
        self,
        total: int = limits.MAX_UNAUTHENTICATED,
        per_peer: int = limits.MAX_UNAUTHENTICATED_PER_PEER,
    ) -> None:
        self._total = total
        self._per_peer = per_peer
        self._peers: dict[str, OrderedDict[ClientConnection, None]] = {}
        """Unauthenticated connections of each peer, oldest first."""
        self.unauthenticated = 0
        self.users: Counter[str] = Counter()
        """The number of authenticated connections of each user."""

    def add(self, peer: str, close: Callable[[], None]) -> ClientConnection:
        """Add a new connection. Closes an older unauthenticated one if there are too many."""
        connection = ClientConnection(self, peer, close)
        own = self._peers.setdefault(peer, OrderedDict())
        own[connection] = None
        self.unauthenticated += 1
        if len(own) > self._per_peer:
            self._close_oldest(peer)
        elif self.unauthenticated > self._total:
            self._close_oldest(max(self._peers, key=lambda name: len(self._peers[name])))
        return connection

    def close_oldest(self) -> bool:
        """Close an unauthenticated connection, if there is one: no descriptor is left."""
        if not self._peers:
            return False
        self._close_oldest(max(self._peers, key=lambda name: len(self._peers[name])))
        return True

    def _close_oldest(self, peer: str) -> None:
        oldest = next(iter(self._peers[peer]))
        self.remove(oldest)
        oldest.close()

    def remove(self, connection: ClientConnection) -> None:
        """Stop counting a connection as unauthenticated."""
        own = self._peers.get(connection.peer)
        if own is not None and connection in own:
            del own[connection]
            self.unauthenticated -= 1
            if not own:
                del self._peers[connection.peer]
