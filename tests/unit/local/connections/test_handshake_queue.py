"""The order of TLS handshakes."""

import asyncio
from functools import partial

from gangline.local.connections.handshakes import HandshakeQueue


async def test_peers_take_turns() -> None:
    queue, order = HandshakeQueue(), list[str]()
    for name in ("a1", "a2", "a3", "b1"):
        queue.add(name[0], partial(order.append, name))
    last = asyncio.get_running_loop().create_future()
    queue.add("c", partial(last.set_result, None))
    running = asyncio.create_task(queue.run())
    await last
    assert order == ["a1", "b1"]
    done = asyncio.Event()
    queue.add("a", done.set)
    await done.wait()
    assert order == ["a1", "b1", "a2", "a3"]
    running.cancel()
