"""The store that agents serve: PyTorch's clients find what PyTorch's own server gives them."""

import asyncio
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.elastic.agent.store import AgentStore

PYTHON = os.environ.get("GANGLINE_TEST_PYTHON", sys.executable)
OPERATIONS = """
    import json, sys, threading
    from datetime import timedelta
    import torch.distributed as dist
    if sys.argv[1] == "torch":
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = server.port
    else:
        port = int(sys.argv[1])
    def client():
        return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    one, two, seen = client(), client(), []
    def note(name, call):
        try:
            value = call()
        except Exception as error:
            value = [type(error).__name__, str(error).split("\\n")[0]]
        seen.append([name, value.decode() if isinstance(value, bytes) else value])
    def later(call):
        threading.Timer(0.2, call).start()
    short = timedelta(seconds=0.2)
    note("set", lambda: one.set("a", "1"))
    note("get", lambda: two.get("a"))
    note("add to a number", lambda: one.add("a", 5))
    note("add to nothing", lambda: two.add("n", -7))
    note("empty value", lambda: (one.set("e", ""), two.get("e").decode()))
    note("compare with nothing", lambda: one.compare_set("b", "", "v"))
    note("compare an absent key", lambda: one.compare_set("absent", "x", "v"))
    note("compare wrong", lambda: one.compare_set("b", "x", "w"))
    note("compare right", lambda: one.compare_set("b", "v", "w"))
    note("append", lambda: (one.append("b", "!"), one.append("new", "?")))
    note("appended", lambda: [v.decode() for v in one.multi_get(["b", "new"])])
    note("multi set", lambda: one.multi_set(["k1", "k2"], ["v1", "v2"]))
    note("multi get", lambda: [v.decode() for v in two.multi_get(["k1", "k2"])])
    note("check", lambda: [one.check(["k1"]), one.check(["k1", "absent"])])
    note("number of keys", lambda: one.num_keys())
    note("delete", lambda: [one.delete_key("k1"), one.delete_key("k1")])
    note("wait in vain", lambda: one.wait(["k2", "absent"], short))
    note("after it", lambda: one.get("k2"))
    later(lambda: two.set("late", "v"))
    note("wait", lambda: one.wait(["late"], timedelta(seconds=60)))
    later(lambda: two.add("count", 1))
    note("get what comes", lambda: one.get("count"))
    note("large", lambda: (one.set("l", "x" * 3_000_000), len(two.get("l")))[1])
    if hasattr(one, "queue_push"):
        note("push", lambda: one.queue_push("q", "x"))
        note("length", lambda: one.queue_len("q"))
        note("pop", lambda: two.queue_pop("q"))
        note("pop nothing", lambda: two.queue_pop("q", block=False))
        later(lambda: two.queue_push("q", "y"))
        note("pop what comes", lambda: one.queue_pop("q"))
    if hasattr(one, "list_keys"):
        note("keys", lambda: sorted(one.list_keys()))
    if hasattr(one, "barrier"):
        note("barrier in vain", lambda: one.barrier("door", 2, short))
        later(lambda: two.barrier("gate", 2, timedelta(seconds=60)))
        note("barrier", lambda: one.barrier("gate", 2, timedelta(seconds=60)))
    print("SEEN" + json.dumps(seen))
"""


def seen(path: Path, server: str) -> list:
    done = subprocess.run(
        [PYTHON, str(path), server], capture_output=True, text=True, timeout=240, check=False
    )
    assert "SEEN" in done.stdout, done.stdout + done.stderr
    return json.loads(done.stdout.partition("SEEN")[2])


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_operations_on_the_store_of_an_agent_equal_those_of_pytorch(script, free_port):
    path = script(OPERATIONS)
    theirs = await asyncio.to_thread(seen, path, "torch")
    store = await AgentStore.listen(free_port)
    try:
        ours = await asyncio.to_thread(seen, path, str(free_port))
    finally:
        store.close()
    assert len(theirs) > 20
    assert ours == theirs


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="another protocol"),
        pytest.param(struct.pack("=BI", 0, 1), id="another magic number"),
        pytest.param(struct.pack("=BIBQ", 0, 0x3C85F7CE, 1, 1 << 40), id="a key without end"),
        pytest.param(struct.pack("=BIB", 0, 0x3C85F7CE, 99), id="an unknown command"),
        pytest.param(
            struct.pack("=BIBQ1sq", 0, 0x3C85F7CE, 4, 1, b"n", (1 << 63) - 1)
            + struct.pack("=BQ1sq", 4, 1, b"n", 1),
            id="an overflow",
        ),
    ],
)
async def test_invalid_requests_cost_their_connection_alone(free_port, request_):
    store = await AgentStore.listen(free_port)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        writer.write(request_)
        async with asyncio.timeout(60):
            with_end = reader.read()
            assert len(await with_end) <= 8
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", free_port)
        writer.write(struct.pack("=BIBI", 0, 0x3C85F7CE, 13, 77))
        async with asyncio.timeout(60):
            assert await reader.readexactly(4) == struct.pack("=I", 77)
        writer.close()
    finally:
        store.close()


@pytest.mark.parametrize(("release", "owner"), [("2.1.2+cu121", "rank 0"), ("2.2.0", "agent")])
def test_earlier_pytorch_opens_the_store_itself(launch, script, tmp_path, release, owner):
    (tmp_path / "lib" / f"torch-{release}.dist-info").mkdir(parents=True)
    path = script("""
        import os, socket
        try:
            socket.create_server(("", int(os.environ["MASTER_PORT"]))).close()
            owner = "rank 0"
        except OSError:
            owner = "agent"
        print("opened by", owner, os.environ["TORCHELASTIC_USE_AGENT_STORE"], flush=True)
    """)
    run = launch("--standalone", "--no-standby", path, PYTHONPATH=str(tmp_path / "lib"))
    assert run.wait() == 0, run.output
    assert f"opened by {owner} {owner == 'agent'}" in run.output


OUTLIVES = """
    import os, sys, time
    import torch.distributed as dist
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        dist.destroy_process_group()
        open(sys.argv[1], "w").close()
        os._exit(0)
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    time.sleep(0.5)
    store.set("result", "42")
    print("rank", rank, "stored", store.get("result").decode(), flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_store_outlives_rank_0_as_under_torchrun(launch, script, tmp_path):
    path, outputs = script(OUTLIVES), {}
    for program in ("torchrun", "gangline"):
        run = launch(
            "--standalone", "--nproc-per-node", 2, path, tmp_path / program, program=program
        )
        outputs[program] = (run.wait(), "rank 1 stored 42" in run.output, run.output)
    assert outputs["torchrun"][:2] == (0, True), outputs["torchrun"][2]
    assert outputs["gangline"][:2] == (0, True), outputs["gangline"][2]
