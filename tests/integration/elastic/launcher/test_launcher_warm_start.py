"""What a warm worker sees when its script or its libraries depend on the environment."""

import json
import os
import signal
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from integration.elastic.launcher.test_launcher_transparency import NEWER, OURS, VOLATILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EVERYTHING = """
    import gc, locale, os, resource, signal, sys, threading, time
    umask = os.umask(0); os.umask(umask)
    main = sys.modules["__main__"]
    SEEN = {
        "environment": dict(os.environ), "argv": list(sys.argv), "path": list(sys.path),
        "modules": sorted(sys.modules),
        "meta_path": [str(each).split(" at ")[0] for each in sys.meta_path],
        "flags": str(sys.flags), "options": sys._xoptions, "warnings": sys.warnoptions,
        "main": {k: str(v) for k, v in vars(main).items() if k in ("__file__", "__name__")},
        "cwd": os.getcwd(), "umask": umask, "own": os.getpid() == main.PID,
        "session": os.getsid(0) == os.getpid(), "parent": os.getppid() == main.PARENT,
        "signals": {int(s): str(signal.getsignal(s)).split(" at ")[0]
                    for s in signal.valid_signals()},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "threads": [each.name for each in threading.enumerate()],
        "tty": [os.isatty(n) for n in range(3)], "locale": locale.getlocale(),
        "zone": time.tzname, "processors": sorted(os.sched_getaffinity(0)),
        "limits": [resource.getrlimit(n) for n in range(8)], "gc": gc.get_threshold(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0), "recursion": sys.getrecursionlimit(),
    }
"""
HOME = """
    import decimal, os
    HOME = os.environ.get("LIBRARY_HOME", "default")
"""
WORLD = """
    import os
    RANK, WORLD = os.environ["RANK"], os.environ.get("WORLD_SIZE")
"""
SCRIPT = """
    import os, sys, time
    PID, PARENT = os.getpid(), os.getppid()
    mapped = "libtorch_cpu" in open("/proc/self/maps").read()
    os.environ["OMP_NUM_THREADS"] = "2"
    os.environ["LIBRARY_HOME"] = "/of/the/script"
    os.environ["OF_RANK"] = "of rank " + os.environ["RANK"]
    import library_home, library_world
    import torch
    import library_everything
    import json
    seen = {**library_everything.SEEN, "home": library_home.HOME, "mapped": mapped, "pid": PID,
            "world": [library_world.RANK, library_world.WORLD],
            "torch_threads": torch.get_num_threads()}
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    path = f"{sys.argv[1]}-{os.environ['RANK']}-{attempt}"
    with open(path + ".part", "w") as file:
        json.dump(seen, file)
    os.rename(path + ".part", path)
    while attempt < int(sys.argv[2]):
        time.sleep(0.05)
"""


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for name, text in (("everything", EVERYTHING), ("home", HOME), ("world", WORLD)):
        (folder / f"library_{name}.py").write_text(textwrap.dedent(text))
    return folder


def read(path: Path) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads(path.read_text())
    return seen


def comparable(seen: dict[str, Any]) -> dict[str, Any]:
    environment = {k: v for k, v in seen["environment"].items() if k not in VOLATILE | NEWER | OURS}
    # The hook of a worker needs some modules of the standard library.
    without = {"pid", "mapped", "modules", "parent"}
    return {k: v for k, v in seen.items() if k not in without} | {
        "environment": environment,
        "argv": seen["argv"][:1],
    }


def kept_modules(tmp_path: Path) -> set[str]:
    """What the spare interpreters of the last start had imported."""
    return {
        name
        for path in (tmp_path / "cache/gangline/imports").glob("*.json")
        for name in json.loads(path.read_bytes())["modules"]
    }


def test_libraries_of_a_warm_worker_see_what_those_of_torchrun_see(
    launch, script, libraries, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(libraries))
    flags = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", script(SCRIPT)]
    theirs = launch(*flags, tmp_path / "theirs", 0, program="torchrun")
    assert theirs.wait() == 0, theirs.output
    ours = launch(*flags, tmp_path / "ours", 1)
    ours.until("spare interpreters are warm: 2")
    # On a busy node the imports may pause for so long that they seem to have ended.
    while "torch" not in kept_modules(tmp_path):
        assert ours.process.poll() is None, ours.output
        time.sleep(0.05)
    os.kill(read(tmp_path / "ours-1-0")["pid"], signal.SIGKILL)
    assert ours.wait() == 0, ours.output
    assert "workers import library_world after their start: it reads RANK" in ours.output
    for rank in ("0", "1"):
        cold, warm = read(tmp_path / f"ours-{rank}-0"), read(tmp_path / f"ours-{rank}-1")
        assert (cold["mapped"], warm["mapped"]) == (False, True)
        assert (warm["torch_threads"], warm["home"]) == (2, "/of/the/script")
        assert warm["world"] == [rank, "2"]
        assert warm["parent"] == cold["parent"]
        assert warm["modules"] == cold["modules"]
        reference = comparable(read(tmp_path / f"theirs-{rank}-0"))
        for name, value in reference.items():
            assert comparable(cold)[name] == value, name
            assert comparable(warm)[name] == value, name
    # A later start of the script has its modules from the beginning.
    again = launch(*flags, tmp_path / "again", 0)
    assert again.wait() == 0, again.output
    for rank in ("0", "1"):
        warm, reference = (read(tmp_path / f"{name}-{rank}-0") for name in ("again", "theirs"))
        assert warm["mapped"]
        assert comparable(warm) == comparable(reference)
