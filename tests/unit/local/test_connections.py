"""Which connection is closed when there are too many without credentials."""

import asyncio

from gangline.local.connections import ClientConnection, ConnectionTable, HandshakeQueue


class Clients:
    """Opens connections by name, and records which were closed."""

    def __init__(self, total: int, per_peer: int) -> None:
        self.table = ConnectionTable(total, per_peer)
        self.closed: list[str] = []

    def open(self, peer: str, name: str) -> ClientConnection:
        return self.table.add(peer, lambda: self.closed.append(name))


def test_oldest_connection_of_a_peer_beyond_its_bound_is_closed() -> None:
    clients = Clients(total=10, per_peer=2)
    for name in ("a1", "a2", "b1", "a3"):
        clients.open(name[0], name)
    assert clients.closed == ["a1"]


def test_peer_with_most_connections_loses_one_when_the_total_is_reached() -> None:
    clients = Clients(total=4, per_peer=10)
    for name in ("b1", "a1", "a2", "a3", "a4", "c1"):
        clients.open(name[0], name)
    assert clients.closed == ["a1", "a2"]
    assert clients.table.unauthenticated == 4


def test_authenticated_connections_are_not_bounded() -> None:
    clients = Clients(total=2, per_peer=2)
    watches = [clients.open("a", f"watch-{number}") for number in range(2)]
    assert [watch.authenticate("alice") for watch in watches] == [1, 2]
    assert watches[0].authenticate("alice") == 0  # its further requests
    for number in range(5):
        clients.open("a", f"idle-{number}")
    assert clients.closed == ["idle-0", "idle-1", "idle-2"]
    watches[0].end()
    assert clients.table.users == {"alice": 1}


def test_ended_connections_make_place() -> None:
    clients = Clients(total=2, per_peer=2)
    first = clients.open("a", "a1")
    first.end()
    first.end()  # also if its handshake and its protocol both report it
    clients.open("a", "a2")
    clients.open("a", "a3")
    assert not clients.closed
    assert clients.table.close_oldest()
    assert clients.closed == ["a2"]


async def test_peers_take_turns() -> None:
    queue, order = HandshakeQueue(), list[str]()

    async def wait(name: str) -> None:
        await queue.wait_turn(name[0])
        order.append(name)

    waiting = [asyncio.create_task(wait(name)) for name in ("a1", "gone", "a2", "a3", "b1")]
    await asyncio.sleep(0)
    waiting.pop(1).cancel()
    running = asyncio.create_task(queue.run())
    await asyncio.gather(*waiting)
    assert order == ["a1", "b1", "a2", "a3"]
    await wait("a4")
    running.cancel()
