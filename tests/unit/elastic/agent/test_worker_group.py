"""The memory of a worker group and its limits."""

from pathlib import Path

import pytest

from gangline.elastic.agent.worker_group import PeakMemory
from gangline.elastic.memory import memory_status, out_of_memory_kills

AGENT, SHELL, WORKER, STRANGER = 20, 1, 21, 30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A pod whose shell (1) runs the agent (20), which runs a worker (21)."""
    parents = {SHELL: 0, AGENT: SHELL, WORKER: AGENT, STRANGER: SHELL}
    for pid, parent in parents.items():
        folder = tmp_path / "proc" / str(pid)
        (folder / "task" / str(pid)).mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (a b) c) S {parent} 0 0 0")
        children = " ".join(str(child) for child in parents if parents[child] == pid)
        (folder / "task" / str(pid) / "children").write_text(children)
        (folder / "status").write_text(f"Name: x\nVmHWM:\t{pid} kB\nVmRSS:\t1 kB\n")
        (folder / "cgroup").write_text("0::/\n")
    return tmp_path / "proc"


def cgroup(folder: Path, *pids: int, peak: str = "memory.peak") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / peak).write_text("5000\n")
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return folder


def test_container_has_a_cgroup_of_its_own(proc: Path, tmp_path: Path) -> None:
    own = cgroup(tmp_path / "cgroup", SHELL, AGENT, WORKER)
    peak = PeakMemory(proc, own, AGENT)
    assert peak.peak_bytes() == 5000
    (own / "memory.peak").write_text("7000\n")
    assert peak.peak_bytes() == 7000


def test_version_1_of_the_interface_is_read(proc: Path, tmp_path: Path) -> None:
    cgroup(tmp_path / "cgroup" / "memory", AGENT, WORKER, peak="memory.max_usage_in_bytes")
    assert PeakMemory(proc, tmp_path / "cgroup", AGENT).peak_bytes() == 5000


def test_cgroup_below_the_root_is_found_by_its_name(proc: Path, tmp_path: Path) -> None:
    (proc / str(AGENT) / "cgroup").write_text("3:cpu:/x\n0::/pods/a\n")
    cgroup(tmp_path / "cgroup" / "pods" / "a", AGENT, WORKER)
    assert PeakMemory(proc, tmp_path / "cgroup", AGENT).peak_bytes() == 5000


@pytest.mark.parametrize(
    ("current", "prefix", "peak"),
    [
        ("memory.current", "", "memory.peak"),
        ("memory.usage_in_bytes", "total_", "memory.max_usage_in_bytes"),
    ],
)
def test_pages_of_files_do_not_count(
    proc: Path, tmp_path: Path, current: str, prefix: str, peak: str
) -> None:
    own = cgroup(tmp_path / "cgroup", SHELL, AGENT, WORKER, peak=peak)
    (own / peak).write_text("900000\n")
    (own / current).write_text("800000\n")
    cached = f"{prefix}inactive_file 400000\n{prefix}active_file 300000\n"
    if prefix:  # plain names are of this cgroup without those below it
        cached = "inactive_file 1\nactive_file 2\n" + cached
    (own / "memory.stat").write_text(cached)
    measured = PeakMemory(proc, own, AGENT)
    assert measured.peak_bytes() == 100_000
    (own / "memory.stat").write_text(cached.replace("300000", "395000"))
    assert measured.peak_bytes() == 100_000, "a peak never falls"
    (proc / str(WORKER) / "status").write_text("VmHWM:\t400 kB\n")
    assert measured.peak_bytes() == (AGENT + 400) * 1024, "a short peak between two samples"
    (proc / str(WORKER) / "status").write_text("VmHWM:\t4000 kB\n")
    assert measured.peak_bytes() == 900_000, "shared pages are counted once in the cgroup"


@pytest.mark.parametrize("other", [STRANGER, 0])
def test_shared_cgroup_does_not_count(proc: Path, tmp_path: Path, other: int) -> None:
    shared = cgroup(tmp_path / "cgroup", SHELL, AGENT, WORKER, other)
    assert PeakMemory(proc, shared, AGENT).peak_bytes() == (AGENT + WORKER) * 1024


def test_peak_stays_after_a_process_has_ended(proc: Path, tmp_path: Path) -> None:
    peak = PeakMemory(proc, tmp_path / "none", AGENT)
    highest = peak.peak_bytes()
    (proc / str(AGENT) / "task" / str(AGENT) / "children").write_text("")
    assert peak.peak_bytes() == highest


def test_nothing_is_known_without_proc(tmp_path: Path) -> None:
    assert PeakMemory(tmp_path / "none", tmp_path / "none", AGENT).peak_bytes() is None


MIB = 1 << 20


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "meminfo").write_text(
        f"MemTotal: {8192 * 1024} kB\nMemFree: 1 kB\nMemAvailable: {4096 * 1024} kB\n"
    )
    (tmp_path / "vmstat").write_text("nr_free_pages 1\noom_kill 3\n")
    return tmp_path


@pytest.mark.parametrize(
    ("files", "limit_mib", "left_mib"),
    [
        pytest.param({}, 8192, 4096, id="no container"),
        pytest.param({"memory.max": "max", "memory.current": "5"}, 8192, 4096, id="no limit"),
        pytest.param(
            {
                "memory.max": str(1024 * MIB),
                "memory.current": str(1000 * MIB),
                "memory.stat": f"anon 1\ninactive_file {100 * MIB}\n",
            },
            1024, 124, id="a container, with files that can go",
        ),
        pytest.param(
            {
                "memory/memory.limit_in_bytes": str(2048 * MIB),
                "memory/memory.usage_in_bytes": str(48 * MIB),
            },
            2048, 2000, id="the first version of cgroups",
        ),
    ],
)  # fmt: skip
def test_the_tighter_limit_counts(machine, tmp_path, files, limit_mib, left_mib):
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text)
    found = memory_status(machine, tmp_path / "cgroup")
    assert (found.limit_bytes, found.available_bytes) == (limit_mib * MIB, left_mib * MIB)


def test_the_kernels_kills_are_those_of_the_container_if_there_is_one(machine, tmp_path):
    assert out_of_memory_kills(machine, tmp_path / "none") == 3
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert out_of_memory_kills(machine, tmp_path) == 1
