"""The order of TLS handshakes."""

import asyncio
from functools import partial

from gangline.local.connections.handshakes import HandshakeQueue


def never() -> None:
    raise AssertionError("refused")


def test_clients_that_wait_are_refused_when_the_queue_is_cleared() -> None:
    queue, refused = HandshakeQueue(), list[str]()
    queue.add("a", never, partial(refused.append, "a1"))
    queue.add("b", never, partial(refused.append, "b1"))
    queue.clear()
    queue.clear()
    assert refused == ["a1", "b1"]


async def test_peers_take_turns() -> None:
    queue, order = HandshakeQueue(), list[str]()
    for name in ("a1", "a2", "a3", "b1"):
        queue.add(name[0], partial(order.append, name), never)
    last = asyncio.get_running_loop().create_future()
    queue.add("c", partial(last.set_result, None), never)
    running = asyncio.create_task(queue.run())
    await last
    assert order == ["a1", "b1"]
    done = asyncio.Event()
    queue.add("a", done.set, never)
    await done.wait()
    assert order == ["a1", "b1", "a2", "a3"]
    running.cancel()
