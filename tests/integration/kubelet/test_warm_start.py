"""Containers that are forked from a fork server, compared with those started by commands."""

import asyncio
import json
import os
import select
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gangline.local.kubelet.runtime.cgroups import ControlGroups
from gangline.local.kubelet.runtime.child_process import ChildProcess
from gangline.local.kubelet.runtime.interface import (
    ContainerIdentity,
    ContainerLimits,
    ContainerPlan,
    WarmEnvironment,
)
from gangline.local.kubelet.runtime.isolation import IsolationLevel, detect_isolation
from gangline.local.kubelet.runtime.process_runtime import ProcessContainer, ProcessRuntime
from gangline.local.kubelet.runtime.warm_start import ContainerForkServer, ForkServerPool
from integration.kubelet.conftest import remove_groups
from integration.kubelet.start_probe import PYTHON, was_imported_before, write_probe
from unit.local.kubelet.builders import a_plan

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
pytestmark = pytest.mark.skipif(
    detect_isolation().level is IsolationLevel.NONE, reason="namespaces are not allowed here"
)
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


class Machine:
    """Starts each container by commands and from a fork server, and collects what it shows."""

    def __init__(self, folder: Path) -> None:
        write_probe(folder)
        self.folder = folder
        self.environment = WarmEnvironment(
            ("library",),
            {
                "PATH": f"{PYTHON.parent}:{SYSTEM_PATH}",
                "HOME": "/root",
                "PYTHONPATH": str(folder / "libraries"),
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
        self.pool = ForkServerPool()
        isolation = detect_isolation()
        self.group_name = f"gangline-test-{os.getpid()}"
        groups = ControlGroups(self.group_name)
        shared = (folder / "libraries", folder / "program", folder / "other")
        self.runtimes = {
            False: ProcessRuntime(isolation, groups, shared),
            True: ProcessRuntime(isolation, groups, shared, self.pool),
        }
        self.count = 0

    def plan(self, *argv: str, **changes: Any) -> ContainerPlan:
        self.count += 1
        environment = {**self.environment.variables, "HOSTNAME": "pod", **changes.pop("env", {})}
        values: dict[str, Any] = {
            "pod_uid": f"uid-{self.count}",
            "env": environment,
            "workdir": "/tmp",
            "hostname": "pod",
            "warm": self.environment,
        }
        argv = argv or ("python3", str(self.folder / "program" / "probe.py"), "--lr", "1")
        return a_plan(self.folder / f"state-{self.count}", *argv, **(values | changes))

    async def wait_ready(self, plan: ContainerPlan) -> None:
        async with asyncio.timeout(60):
            while await self.pool.find(plan) is None:
                await asyncio.sleep(0.02)

    async def run(self, plan: ContainerPlan, *, warm: bool | None) -> tuple[int, str, str]:
        """Run a container to its end; return its exit code and output.

        With None it may start warm, but does not wait for a server.
        """
        output: dict[str, bytes] = {"stdout": b"", "stderr": b""}

        def collect(stream: str, data: bytes) -> None:
            output[stream] += data

        if warm:
            await self.wait_ready(plan)
        container = await self.runtimes[warm is not False].start(plan, collect)
        exit_ = await asyncio.wait_for(container.wait(), 60)
        return exit_.code, output["stdout"].decode(), output["stderr"].decode()

    async def probe(self, *, warm: bool, **changes: Any) -> tuple[bool, dict[str, Any]]:
        """Run the probe; return whether its library was imported before its start."""
        code, output, errors = await self.run(self.plan(**changes), warm=warm)
        assert (code, errors) == (0, ""), errors
        seen = json.loads(output)
        text = json.dumps(seen).replace(f"state-{self.count}", "state")
        seen = json.loads(text)
        return was_imported_before(seen), seen


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    found = Machine(tmp_path)
    found.pool.start([found.environment])
    yield found
    await found.pool.stop()
    remove_groups(found.group_name)


IDENTITIES = {
    "as the kubelet": ContainerIdentity(),
    "another user": ContainerIdentity(1234, 2345, (3456,)),
    "root without rights": ContainerIdentity(0, 0, (), (0, 1, 10), no_new_privileges=True),
    "fewer capabilities": ContainerIdentity(capabilities=(3, 5, 33)),
}
PROGRAMS = {
    "script": ("python3", "probe.py", "--lr", "1"),
    "relative script": ("python3", "./../program/probe.py"),
    "module": ("python3", "-m", "probe", "-x"),
    "exception": ("python3", "probe.py"),
    "missing script": ("python3", "missing.py"),
    "missing module": ("python3", "-m", "missing"),
    "command": (
        "python3",
        "-c",
        "import sys, library; print(sys.argv, __name__); sys.exit(7)",
        "a",
    ),
    "killed": ("python3", "-c", "import os; os.abort()"),
    "syntax error": ("python3", "-c", "import library; 1 +"),
}


@pytest.mark.parametrize(
    "identity",
    [
        pytest.param(each, id=name, marks=() if each.changes_nothing else ROOT)
        for name, each in IDENTITIES.items()
    ],
)
async def test_forked_container_sees_what_a_started_one_sees(
    machine: Machine, identity: ContainerIdentity
) -> None:
    limits = ContainerLimits(cpu_request_milli=100, memory_bytes=1 << 30)
    variables = {"SECRET": "é=1", "RANK": "3"}
    # The same pod: the name of a control group contains its UID.
    changes = {"pod_uid": "uid", "identity": identity, "limits": limits, "env": variables}
    was_warm, cold = await machine.probe(warm=False, **changes)
    assert not was_warm
    is_warm, warm = await machine.probe(warm=True, **changes)
    assert {name: (cold[name], warm[name]) for name in cold if cold[name] != warm[name]} == {}
    assert is_warm


async def test_forked_programs_end_as_started_ones(machine: Machine) -> None:
    workdir = str(machine.folder / "program")
    for name, argv in PROGRAMS.items():
        env = {"RAISE": "1"} if name == "exception" else {"CODE": "3"}
        results = []
        for warm in (False, True):
            plan = machine.plan(*argv, workdir=workdir, env=env)
            code, output, errors = await machine.run(plan, warm=warm)
            if output.startswith("{"):
                seen = json.loads(output)
                output = str([seen[each] for each in ("argv", "path", "file", "frame", "cmdline")])
            # The shell of a cold start reports some signals in the container's output.
            errors = errors.replace("Segmentation fault\n", "")
            results.append((code, output.partition(" at 0x")[0], errors))
        assert results[0] == results[1], name


async def test_import_that_read_another_value_is_repeated(machine: Machine) -> None:
    is_warm, seen = await machine.probe(warm=True, env={"LIBRARY_MODE": "other"})
    assert (seen["library"], is_warm) == ("other", False)
    is_warm, seen = await machine.probe(warm=True, env={"OTHER_MODE": "other"})
    assert (seen["library"], is_warm) == (None, True)


async def test_module_beside_the_script_replaces_that_of_the_server(machine: Machine) -> None:
    other = machine.folder / "other"
    other.mkdir()
    (other / "library.py").write_text("import os\nprint('own library')\n")
    (other / "train.py").write_text("import library\n")
    plan = machine.plan("python3", str(other / "train.py"))
    assert await machine.run(plan, warm=True) == (0, "own library\n", "")


async def test_server_never_has_secrets_of_containers(machine: Machine) -> None:
    secret = f"secret-of-{os.getpid()}-"
    code = "import os, time; print(len(os.environ['SECRET']), flush=True); time.sleep(600)"
    plan = machine.plan("python3", "-c", code, env={"SECRET": secret * 3})
    await machine.wait_ready(plan)
    server = await machine.pool.find(plan)
    assert server is not None
    printed = asyncio.Event()
    container = await machine.runtimes[True].start(plan, lambda *_: printed.set())
    await asyncio.wait_for(printed.wait(), 30)
    assert (secret * 3).encode() in memory_of(container.init_pid)
    assert (secret * 3).encode() not in memory_of(server.process.pid)
    container.kill()
    assert (await container.wait()).code == 137


def memory_of(pid: int) -> bytes:
    """The writable memory of a process."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            span, access = line.split(maxsplit=2)[:2]
            if access.startswith("rw"):
                start, end = (int(each, 16) for each in span.split("-"))
                memory.seek(start)
                found.append(memory.read(end - start))
    return b"".join(found)


async def test_containers_outlive_their_server_and_the_next_start_is_cold(
    machine: Machine,
) -> None:
    code = "import time; print('runs', flush=True); time.sleep(600)"
    plan = machine.plan("python3", "-c", code)
    await machine.wait_ready(plan)
    server = await machine.pool.find(plan)
    assert server is not None
    printed = asyncio.Event()
    container = await machine.runtimes[True].start(plan, lambda *_: printed.set())
    await asyncio.wait_for(printed.wait(), 30)
    os.kill(server.process.pid, signal.SIGKILL)
    await server.process.wait()
    # It has not been restarted yet, and a container does not wait for it.
    assert await machine.run(machine.plan("python3", "-c", "print(1)"), warm=None) == (0, "1\n", "")
    await machine.wait_ready(plan)
    assert await machine.pool.find(plan) is not server
    os.kill(container.init_pid, 0)
    container.kill()
    assert (await container.wait()).code == 137


async def test_container_dies_with_its_kubelet(machine: Machine) -> None:
    plan = machine.plan("python3", "-c", "import time; print(1, flush=True); time.sleep(600)")
    await machine.wait_ready(plan)
    server = await machine.pool.find(plan)
    assert server is not None
    printed = asyncio.Event()
    container = await machine.runtimes[True].start(plan, lambda *_: printed.set())
    await asyncio.wait_for(printed.wait(), 30)
    supervisor = container.child
    assert supervisor is not None
    ended = os.pidfd_open(container.init_pid)
    try:
        # As the kernel does when a process ends: the only reading end of the pipe is closed.
        pipe = supervisor._ended_fd
        asyncio.get_running_loop().remove_reader(pipe)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, pipe)
        os.close(nothing)
        readable, _, _ = await asyncio.to_thread(select.select, [ended], [], [], 30)
        assert readable
    finally:
        os.close(ended)
        supervisor._record_exit()
        await container.wait()


HOST = """
import os, socket, sys
with socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))) as listener:
    print("listens", flush=True)
    while True:
        rank, _ = listener.accept()
        rank.sendall(sys.argv[1].encode())
        rank.close()
"""
RANK = """
import os, socket
with socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"]))) as store:
    print(store.recv(100).decode(), flush=True)
"""


async def test_restarted_rank_is_forked_and_joins_the_next_store_only(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    forks, fork = [], ContainerForkServer.fork

    async def counted(server: ContainerForkServer, *arguments: Any) -> ChildProcess:
        forks.append(await fork(server, *arguments))
        return forks[-1]

    monkeypatch.setattr(ContainerForkServer, "fork", counted)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": str(port)}
    runtime = machine.runtimes[True]

    async def host(number: int) -> ProcessContainer:
        listens = asyncio.Event()
        argv = ("python3", "-c", HOST, f"store {number}")
        plan = machine.plan(*argv, env=env, pod="job-master-0", instance=number)
        container = await runtime.start(plan, lambda *_: listens.set())
        await asyncio.wait_for(listens.wait(), 30)
        return container

    def rank(number: int) -> ContainerPlan:
        return machine.plan("python3", "-c", RANK, env=env, pod="job-worker-0", instance=number)

    plan = rank(0)
    await machine.wait_ready(plan)
    server = await machine.pool.find(plan)
    assert server is not None
    server.import_s = 60.0  # as with an import of PyTorch on a slow machine
    first = await host(0)
    assert await machine.run(plan, warm=True) == (0, "store 0\n", "")
    restarted = asyncio.create_task(machine.run(rank(1), warm=True))
    first.kill()
    await first.wait()
    second = await host(1)
    assert await restarted == (0, "store 1\n", "")
    assert len(forks) == 4, "both runs of the rank, and both of its host"
    second.kill()
    await second.wait()
