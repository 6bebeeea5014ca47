"""Interpreters of the node check: the environment of forks, their end, replacements."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gangline.elastic.agent.spare_interpreter import ForkedChild, SpareInterpreter
from gangline.elastic.nodecheck.interpreters import CheckInterpreters, idle_interpreters
from gangline.elastic.nodecheck.result import CheckWorkload
from gangline.elastic.nodecheck.run import CheckSettings, CheckWorkers
from gangline.elastic.protocol.messages import CheckGroup, CheckMember, CheckRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

REPORTS = """
import json, os, signal, socket, sys, threading
def main(descriptor):
    seen = {
        "environment": dict(os.environ), "cwd": os.getcwd(), "path": sys.path,
        "processors": sorted(os.sched_getaffinity(0)), "input": os.readlink("/proc/self/fd/0"),
        "output": [os.readlink("/proc/self/fd/1"), os.readlink("/proc/self/fd/2")],
        "torch": "torch" in sys.modules, "customized": sys.modules["sitecustomize"].__file__,
        "threads": [each.name for each in threading.enumerate()], "parent": os.getppid(),
    }
    with socket.socket(fileno=descriptor) as channel:
        channel.sendall(json.dumps(seen).encode())
    os._exit(7)
"""
SLEEPS = """
import socket, time
def main(descriptor):
    socket.socket(fileno=descriptor).sendall(b"\\n")
    time.sleep(1000)
"""
HANGS_ONCE = """
import os, time
from gangline.elastic.nodecheck import worker
def main(descriptor):
    if not os.path.exists(__file__ + ".hung"):
        open(__file__ + ".hung", "w").close()
        time.sleep(1000)
    worker.main(descriptor)
"""
LIBRARY = """
import os
if not os.path.exists(__file__ + ".tried"):
    open(__file__ + ".tried", "w").close()
    raise OSError("the file system is away")
"""

Module = Callable[[str, str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """Write a module that the forks can import."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def interpreters(*, may_train: bool = True, **environment: str) -> CheckInterpreters:
    """Return one interpreter of its own environment."""
    command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    inherited = {**os.environ, **environment}
    return CheckInterpreters(
        lambda _: SpareInterpreter.start(command, inherited), 1, may_train=may_train
    )


async def lent(spare: SpareInterpreter, module: str) -> ForkedChild:
    """Fork a child, and wait for its first message."""
    child = await spare.fork_child(module, os.environ)
    assert await child.reader.readline()
    return child


async def test_a_fork_sees_what_an_interpreter_of_the_agents_would_see(
    module: Module, tmp_path: Path
) -> None:
    module("sitecustomize", "")
    name = module("tells", REPORTS)
    async with interpreters(ONLY="the interpreter's") as one:
        spare = await one.warm(0)
        child = await spare.fork_child(name, {**os.environ, "MORE": "yes"})
        seen = json.loads(await child.reader.read())
        child.writer.close()
        assert await spare.wait_for_child() == 7
    assert seen["environment"] == {**os.environ, "MORE": "yes"}
    assert seen["cwd"] == os.getcwd()
    assert seen["path"] == sys.path
    assert seen["processors"] == sorted(os.sched_getaffinity(0))
    assert seen["input"] == os.devnull
    assert seen["output"] == [os.readlink("/proc/self/fd/2")] * 2
    assert seen["torch"]
    assert seen["customized"] == str(tmp_path / "sitecustomize.py")
    assert seen["threads"] == ["MainThread"]
    assert seen["parent"] == spare.process.pid


async def test_a_fork_is_recalled_and_its_interpreter_goes_on(module: Module) -> None:
    async with interpreters() as one:
        spare = await one.warm(0)
        for _ in range(2):
            child = await lent(spare, module("sleeps", SLEEPS))
            await spare.end_child()
            assert await spare.wait_for_child() == -9
            assert not await child.reader.read()
            child.writer.close()
        assert not spare.process.ended.done()


async def test_hanging_fork_is_reported_and_replaced(module: Module) -> None:
    settings = CheckSettings(
        request=CheckRequest(node_id=0),
        workload=CheckWorkload(matrix_size=8, matrix_repeats=1, collective_bytes=64, timeout_s=1),
        start_timeout_s=15,
        module=module("hangs", HANGS_ONCE),
    )
    group = CheckGroup(round=0, members=(CheckMember(0, 0, "127.0.0.1"),), store_host="127.0.0.1")
    async with interpreters() as one:
        before = await one.warm(0)
        async with CheckWorkers(settings, one) as workers:
            [first] = await workers.measure(group)
            assert (first.test, first.message) == ("collective", "no answer within 19 s")
            await workers.replace_failed([first])
            again = CheckGroup(0, group.members, group.store_host, await workers.port())
            [second] = await workers.measure(again)
            assert second.passed, second.message
        assert await one.warm(0) is before, "an interpreter that computed nothing is reused"


async def test_an_interpreter_that_died_or_could_not_import_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(LIBRARY)
    async with interpreters(PYTHONPATH=str(tmp_path)) as one:
        first = await one.warm(0)
        assert not first.has_all_modules
        await one.replace(0)
        second = await one.warm(0)
        assert second.has_all_modules
        await one.replace(0)
        assert await one.warm(0) is second
        second.process.signal_process(signal.SIGKILL)
        await second.process.ended
        await one.replace(0)
        third = await one.warm(0)
        assert await one.release() == {0: third}
    assert first.process.ended.done()
    assert not third.process.ended.done(), "it may train"
    third.process.signal_process(signal.SIGKILL)
    await third.process.ended
    third.writer.close()


@pytest.mark.parametrize(
    "make", [lambda: idle_interpreters(1), lambda: interpreters(may_train=False)]
)
async def test_interpreters_for_the_check_alone_end_with_it(
    make: Callable[[], CheckInterpreters],
) -> None:
    async with make() as one:
        spare = await one.warm(0)
        assert await one.release() == {}
        assert spare.process.ended.done()
