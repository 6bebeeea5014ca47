"""A script sees the same under torchrun, under the launcher, and in a spare."""

import json
import os
import signal
from pathlib import Path

import pytest

VOLATILE = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
}
DRAWN = ("seed", "random", "hash")
OURS = {
    "GANGLINE_PROGRESS_FILE",
    "RUNTIME_METRICS_PATH",
    "GANGLINE_LOCAL_MASTER_ADDR",
    "GANGLINE_JOB_SECRET",
    "GANGLINE_SURVIVOR_FOLDER",
    "GANGLINE_SURVIVOR_SLOT",
}
NEWER = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
"""Variables that only newer releases of torchrun set."""
DUMP = """
    import sys
    paths, modules, meta_path = list(sys.path), set(sys.modules), len(sys.meta_path)
    import gc, json, locale, os, random, signal, threading, time
    import torch
    main = sys.modules["__main__"]
    umask = os.umask(0); os.umask(umask)
    seen = {
        "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": paths, "meta_path": meta_path,
        "command": open("/proc/self/cmdline").read().split("\\0")[1:],
        "name": open("/proc/self/comm").read(),
        "main": {k: str(v) for k, v in sorted(vars(main).items()) if k.startswith("__")
                 and k not in ("__loader__", "__builtins__", "__warningregistry__")},
        "loader": type(main.__loader__).__name__,
        "traces": sorted(m for m in modules if "customize" in m or "gangline" in m),
        "environment": dict(os.environ), "cwd": os.getcwd(),
        "signals": {int(s): str(signal.getsignal(s)).split(" at ")[0]
                    for s in signal.valid_signals()},
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "threads": [t.name for t in threading.enumerate()],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__,
                  sys.getprofile(), sys.gettrace()],
        "flags": str(sys.flags), "recursion": sys.getrecursionlimit(), "gc": gc.get_threshold(),
        "session": os.getsid(0) == os.getpid(), "group": os.getpgid(0) == os.getpid(),
        "nice": [os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir("/proc/self/task")][0],
        "autogroup": open("/proc/self/autogroup").read().split()[1:]
                     if os.path.exists("/proc/self/autogroup") else [],
        "cpus": sorted(os.sched_getaffinity(0)),
        "umask": umask, "locale": locale.getlocale(), "encoding": sys.stdout.encoding,
        "tty": [os.isatty(n) for n in range(3)], "buffering": sys.stdout.line_buffering,
        "untouched": torch.rand(3).tolist() == torch.rand(
            3, generator=torch.Generator().manual_seed(torch.initial_seed())).tolist(),
        "seed": torch.initial_seed(), "random": random.random(), "hash": hash("seed"),
        "torch": [torch.get_num_threads(),
                  torch.get_num_interop_threads(), str(torch.get_default_dtype()),
                  torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()],
        "cache": [p for p in sys.path_importer_cache if "agent/hook" in p],
        "files": sorted(os.readlink(f"/proc/self/fd/{n}").split(":")[0].split("/")[-1]
                        for n in os.listdir("/proc/self/fd")
                        if int(n) > 2 and os.path.exists(f"/proc/self/fd/{n}")),
        "pid": os.getpid(),
    }
    torch.set_num_interop_threads(2)  # fails where parallel work has begun
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    path = sys.argv[1] + str(attempt)
    with open(path + ".part", "w") as file:
        json.dump(seen, file)
    os.rename(path + ".part", path)
    print("dumped", attempt, flush=True)
    while attempt < int(sys.argv[2]):
        time.sleep(0.05)
"""


def seen(path: Path) -> dict:
    return json.loads(path.read_text())


def comparable(dump: dict) -> dict:
    """Remove what differs between any two processes, and intended differences."""
    dump = dict(dump)
    environment = dump.pop("environment")
    dump["environment"] = {k: v for k, v in environment.items() if k not in VOLATILE | OURS}
    # Stacks are written to a file; the socket is there until the modules have been learned.
    dump["files"] = [name for name in dump["files"] if name not in ("stacks.txt", "socket")]
    dump |= {"argv": dump["argv"][:1], "orig_argv": dump["orig_argv"][:-2]}
    dump["command"] = dump["command"][:-3]
    # Other releases of PyTorch, or what they need, add to these two when they are imported.
    added = ("path", "meta_path") if "GANGLINE_TEST_PYTHON" in os.environ else ()
    for name in ("pid", *DRAWN, *added):
        del dump[name]
    return dump


@pytest.fixture
def as_under_nohup():
    """Start programs with terminal signals ignored, as nohup does."""
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGHUP, signal.SIGQUIT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.usefixtures("as_under_nohup")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "checked",
    [
        pytest.param([], id="cold"),
        pytest.param(["--network-check", "--preload=torch"], id="checked"),
    ],
)
def test_a_script_sees_what_it_sees_under_torchrun(launch, script, tmp_path, checked):
    flags = ["--standalone", "--nproc-per-node", "1", "--max-restarts", "1", script(DUMP)]
    theirs = launch(*flags, tmp_path / "theirs", 0, program="torchrun")
    assert theirs.wait() == 0, theirs.output
    ours = launch(*checked, *flags, tmp_path / "ours", 1)
    if checked:
        ours.until("workers start in interpreters of the node check: 1")
    ours.until("spare interpreters are warm")
    ours.until("dumped 0")
    os.kill(seen(tmp_path / "ours0")["pid"], signal.SIGKILL)
    assert ours.wait() == 0, ours.output

    reference, cold, warm = (seen(tmp_path / name) for name in ("theirs0", "ours0", "ours1"))
    for found in (cold, warm):
        for name in NEWER - set(reference["environment"]):
            del found["environment"][name]
        assert set(found["environment"]) == set(reference["environment"]) | OURS
        assert found["untouched"], "the random numbers of torch are not those of its seed"
    assert all(cold[name] != warm[name] for name in DRAWN), "as between any two processes"
    for name, value in comparable(reference).items():
        assert comparable(cold)[name] == value
        assert comparable(warm)[name] == value
