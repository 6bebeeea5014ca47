"""The connection that ends when a process is killed, and what its agent sees then."""

import asyncio
import signal
import subprocess
import sys

from gangline.elastic.agent.process import is_killed
from gangline.elastic.agent.rendezvous import free_port
from gangline.elastic.agent.store import AgentStore
from gangline.elastic.survivors.messages import Alive
from gangline.elastic.survivors.orders import MESSAGES_KEY, decode_message

WORKER = """
import os, sys, time
from gangline.elastic.trainer.life_line import open_life_line
before = os.listdir("/proc/self/fd")
open_life_line("127.0.0.1", int(sys.argv[1]), 3)
assert os.listdir("/proc/self/fd") == before
print("ready", flush=True)
time.sleep(1000)
"""


async def test_line_ends_with_a_killed_process_which_is_known_as_killed() -> None:
    port, ended = free_port(), asyncio.Event()
    messages: list[object] = []
    store = await AgentStore.listen(port)
    store.listeners[MESSAGES_KEY] = lambda data, peer: (
        messages.append(decode_message(data)),
        peer.watch(ended.set),
    )[-1]
    with subprocess.Popen(  # noqa: ASYNC220 - it is reaped here
        [sys.executable, "-c", WORKER, str(port)], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout
        assert await asyncio.to_thread(worker.stdout.readline) == "ready\n"
        assert messages == [Alive(3)]
        assert not ended.is_set()
        assert not is_killed(worker.pid)
        worker.send_signal(signal.SIGKILL)
        await ended.wait()
        assert is_killed(worker.pid)
    store.close()
