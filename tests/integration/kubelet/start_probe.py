"""A program that prints everything that it sees of its start, and the library that it imports."""

import sys
import textwrap
from pathlib import Path
from typing import Any

_MACHINES = Path("/usr/bin/python3")
PYTHON = _MACHINES if _MACHINES.exists() else Path(sys._base_executable)  # type: ignore[attr-defined]
"""An interpreter without Gangline, which other users can run."""
_PROBE = """
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
    if "RAISE" in os.environ:
        raise ValueError("an error of the program")
    sys.exit(int(os.environ.get("CODE", "0")))
"""
_LIBRARY = """
    import decimal, os, time
    IMPORTED_AT = time.clock_gettime(time.CLOCK_BOOTTIME)
    VALUE = os.environ.get("LIBRARY_MODE")
"""


def write_probe(folder: Path) -> tuple[Path, Path]:
    """Write ``program/probe.py`` and ``libraries/library.py``; return both folders.

    The folder is pytest's: other users may enter it and both folders above it afterwards.
    """
    program, libraries = folder / "program", folder / "libraries"
    for path, text in ((program / "probe.py", _PROBE), (libraries / "library.py", _LIBRARY)):
        path.parent.mkdir()
        path.write_text(textwrap.dedent(text))
    for each in (folder, *folder.parents[:2]):
        each.chmod(0o755)
    return program, libraries


def was_imported_before(seen: dict[str, Any]) -> bool:
    """Whether the library was imported before the process was started; removes both times."""
    # A tick of tolerance: the start is rounded down. An interpreter takes longer to begin.
    return bool(seen.pop("imported") < seen.pop("started") + 0.015)
