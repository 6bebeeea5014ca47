"""Containers that are forked from a fork server, compared with those that are started by commands."""

import asyncio
import json
import os
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
    ContainerMount,
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
                   if name.startswith(("Cap", "Sig", "Shd", "Uid", "Gid", "Groups", "NoNew", "NS",
                                       "Seccomp", "Umask", "Threads", "Cpus", "Mems_allowed_list",
                                       "Pid", "PPid"))},
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
        python = Path(sys._base_executable)  # type: ignore[attr-defined]
        self.environment = WarmEnvironment(
            ("library",),
            {
                "PATH": f"{python.parent}:{SYSTEM_PATH}",
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
            "pod_uid": "uid",
            "namespace": "default",
            "pod": "p",
            "container": "c",
            "instance": self.count,
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
            while self.pool.find(plan) is None:
                await asyncio.sleep(0.02)

    async def run(self, plan: ContainerPlan, *, warm: bool) -> tuple[int, str, str]:
        """Run a container to its end; return its exit code and output."""
        output: dict[str, bytes] = {"stdout": b"", "stderr": b""}

        def collect(stream: str, data: bytes) -> None:
            output[stream] += data

        if warm:
            await self.wait_ready(plan)
        container = await self.runtimes[warm].start(plan, collect)
        exit_ = await asyncio.wait_for(container.wait(), 60)
        return exit_.code, output["stdout"].decode(), output["stderr"].decode()

    async def probe(self, *, warm: bool, **changes: Any) -> tuple[bool, dict[str, Any]]:
        """Run the probe; return whether its library was imported before its start."""
        code, output, errors = await self.run(self.plan(**changes), warm=warm)
        assert (code, errors) == (0, ""), errors
        seen = json.loads(output)
        text = json.dumps(seen).replace(f"state-{self.count}", "state")
        seen = json.loads(text)
        # One tick of tolerance: the start is rounded down.
        return seen.pop("imported") < seen.pop("started") + 0.001, seen


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


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
async def test_forked_container_sees_what_a_started_one_sees(
    machine: Machine, identity: ContainerIdentity
) -> None:
    limits = ContainerLimits(cpu_request_milli=100, memory_bytes=1 << 30)
    changes = {"identity": identity, "limits": limits, "env": {"SECRET": "é=1", "RANK": "3"}}
    was_warm, cold = await machine.probe(warm=False, **changes)
    assert not was_warm
    is_warm, warm = await machine.probe(warm=True, **changes)
    for name in cold:  # DEBUG
        if cold[name] != warm[name]:
            a, b = cold[name], warm[name]
            if isinstance(a, dict):
                a, b = list(a.items()), list(b.items())
            print(name, [x for x in a if x not in b], [x for x in b if x not in a])
    assert {name: (cold[name], warm[name]) for name in cold if cold[name] != warm[name]} == {}
    assert is_warm
