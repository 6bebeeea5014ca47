"""Containers that are forked from a fork server, compared with those started by commands."""

import asyncio
import json
import os
import select
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gangline.local.kubelet.runtime.cgroups import ControlGroups
from gangline.local.kubelet.runtime.interface import (
    ContainerIdentity,
    ContainerLimits,
    ContainerPlan,
    WarmEnvironment,
)
from gangline.local.kubelet.runtime.isolation import IsolationLevel, detect_isolation
from gangline.local.kubelet.runtime.process_runtime import ProcessRuntime
from gangline.local.kubelet.runtime.warm_start.pool import ForkServerPool

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
pytestmark = pytest.mark.skipif(
    detect_isolation().level is IsolationLevel.NONE, reason="namespaces are not allowed here"
)
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_MACHINES = Path("/usr/bin/python3")
PYTHON = _MACHINES if _MACHINES.exists() else Path(sys._base_executable)  # type: ignore[attr-defined]
"""An interpreter without Gangline, which other users can run."""
PROBE = """
    import sys
    seen = {
        "modules": sorted(sys.modules), "argv": sys.argv, "orig_argv": sys.orig_argv,
        "path": sys.path, "executable": sys.executable, "flags": str(sys.flags),
        "frame": str(sys._getframe().f_back), "main": sorted(globals()),
        "streams": [(each.name, each.mode, each.encoding, each.line_buffering, each.write_through,
                     each.seekable()) for each in (sys.stdin, sys.stdout, sys.stderr)],
    }
    import library
    import json, os, resource, signal, threading, time
    own = "/proc/self/"
    def text(name):
        with open(own + name) as file:
            return file.read()
    status = dict(line.split(":", 1) for line in text("status").splitlines())
    seen |= {
        "library": library.VALUE, "imported": library.IMPORTED_AT,
        "started": int(text("stat").rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK"),
        "file": __file__, "spec": str(__spec__), "package": __package__, "cwd": os.getcwd(),
        "environment": list(os.environ.items()), "cmdline": text("cmdline"),
        "environ": text("environ"), "comm": text("comm"), "exe": os.readlink(own + "exe"),
        "status": {name: status[name].strip() for name in status
                   if name.startswith(("Cap", "SigB", "SigI", "SigC", "SigP", "Shd", "Uid", "Gid",
                                       "Groups", "NoNew", "NS", "Seccomp", "Umask", "Threads",
                                       "Cpus", "Mems_allowed_list", "Pid", "PPid"))},
        "limits": text("limits"), "mounts": sorted(line.split()[4:] for line
                                                   in text("mountinfo").splitlines()),
        "groups": [line.rpartition("_")[0] for line in text("cgroup").splitlines()],
        "owners": [os.stat(own + name).st_uid for name in ("environ", "fd", "maps")],
        "files": sorted((os.readlink(own + "fd/" + each).partition("[")[0], each)
                        for each in os.listdir(own + "fd") if os.path.exists(own + "fd/" + each)),
        "pid": os.getpid(), "session": os.getsid(0), "group": os.getpgrp(),
        "host": os.uname().nodename, "nice": os.nice(0), "oom": text("oom_score_adj"),
        "signals": [str(signal.getsignal(each)) for each in signal.valid_signals()],
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "threads": threading.active_count(), "root": sorted(os.listdir("/")),
        "dev": sorted(os.listdir("/dev")), "processors": sorted(os.sched_getaffinity(0)),
        "hooks": (sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile()),
        "same namespaces": [os.readlink(own + "ns/" + each) == os.environ.get("NS_" + each)
                            for each in ("pid", "mnt", "uts", "ipc", "net")],
        "after": sorted(sys.modules),
    }
    print(json.dumps(seen), flush=True)
    if "SLEEP" in os.environ:
        time.sleep(600)
    if "RAISE" in os.environ:
        raise ValueError("an error of the program")
    sys.exit(int(os.environ.get("CODE", "0")))
"""
LIBRARY = """
    import decimal, os, time
    IMPORTED_AT = time.clock_gettime(time.CLOCK_BOOTTIME)
    VALUE = os.environ.get("LIBRARY_MODE")
"""


class Machine:
    """Starts each container by commands and from a fork server, and collects what it shows."""

    def __init__(self, folder: Path) -> None:
        for name, text in (("program", PROBE), ("libraries", LIBRARY)):
            (folder / name).mkdir()
            file = folder / name / ("probe.py" if name == "program" else "library.py")
            file.write_text(textwrap.dedent(text))
        folder.chmod(0o755)
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
        self.groups = ControlGroups(f"gangline-test-{os.getpid()}")
        shared = (folder / "libraries", folder / "program", folder / "other")
        self.runtimes = {
            False: ProcessRuntime(isolation, self.groups, shared),
            True: ProcessRuntime(isolation, self.groups, shared, self.pool),
        }
        self.count = 0

    def plan(self, *argv: str, **changes: Any) -> ContainerPlan:
        self.count += 1
        state = self.folder / f"state-{self.count}"
        state.mkdir()
        environment = {**self.environment.variables, "HOSTNAME": "pod", **changes.pop("env", {})}
        values: dict[str, Any] = {
            "pod_uid": f"uid-{self.count}",
            "namespace": "default",
            "pod": "p",
            "container": "c",
            "instance": 0,
            "argv": argv or ("python3", str(self.folder / "program" / "probe.py"), "--lr", "1"),
            "env": environment,
            "state_dir": state,
            "workdir": "/tmp",
            "hostname": "pod",
            "warm": self.environment,
        }
        return ContainerPlan(**(values | changes))

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
        # A tick of tolerance: the start is rounded down. An interpreter takes longer to begin.
        return seen.pop("imported") < seen.pop("started") + 0.015, seen


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    found = Machine(tmp_path)
    found.pool.start([found.environment])
    yield found
    await found.pool.stop()
    found.groups.clean_up()


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
        pipe = supervisor._transport._pidfd  # type: ignore[union-attr]
        asyncio.get_running_loop().remove_reader(pipe)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, pipe)
        os.close(nothing)
        readable, _, _ = await asyncio.to_thread(select.select, [ended], [], [], 30)
        assert readable
    finally:
        os.close(ended)
        supervisor._transport._exited()  # type: ignore[union-attr]
        await container.wait()
