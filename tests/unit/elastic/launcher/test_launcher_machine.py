"""Limits of the number of workers, from the kernel's files."""

import resource
from pathlib import Path

import pytest

from gangline.elastic.launcher.machine import tightest_worker_limit

MEMORY_MIB = 4096
FILES, PROCESSES = 5000, 3000


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 4 GiB whose users may open 5,000 files and have 3,000 processes."""
    kernel = tmp_path / "sys/kernel"
    kernel.mkdir(parents=True)
    (kernel / "pid_max").write_text("32768\n")
    (kernel / "threads-max").write_text("190000\n")
    kib = MEMORY_MIB << 10
    (tmp_path / "meminfo").write_text(f"MemTotal: {kib} kB\nMemAvailable: {kib} kB\n")
    limits = {resource.RLIMIT_NOFILE: FILES, resource.RLIMIT_NPROC: PROCESSES}
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limits[what],) * 2)
    return tmp_path


def limit(machine: Path, *, is_python: bool = True, is_root: bool = True):
    group = machine / "cgroup"
    return tightest_worker_limit(is_python=is_python, is_root=is_root, proc=machine, cgroup=group)


def test_interpreters_need_memory(machine):
    found = limit(machine)
    assert found.max_workers == MEMORY_MIB // 2
    assert f"there are {MEMORY_MIB} MiB of memory" in found.reason


def test_memory_limit_applies_to_python_only(machine):
    found = limit(machine, is_python=False)
    assert (found.max_workers, found.reason) == (
        FILES,
        "the launcher may open 5000 files (ulimit -n)",
    )


def test_limits_of_users_hold_for_all_but_root(machine):
    found = limit(machine, is_python=False, is_root=False)
    assert found.max_workers == PROCESSES
    assert "(ulimit -u)" in found.reason


@pytest.mark.parametrize("name", ["pids.max", "pids/pids.max"])
def test_a_container_has_a_limit_of_its_own(machine, name):
    path = machine / "cgroup" / name
    path.parent.mkdir(parents=True)
    path.write_text("100\n")
    assert (limit(machine).max_workers, limit(machine).reason) == (100, f"{path} is 100")
    path.write_text("max\n")
    assert limit(machine).max_workers == MEMORY_MIB // 2


def test_without_limits_kernel_maxima_apply(machine, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert limit(machine, is_python=False, is_root=False).max_workers == 32768
