"""Memory limits and out-of-memory kills, of a machine and of a container."""

from pathlib import Path

import pytest

from gangline.elastic.memory import memory_status, out_of_memory_kills

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
