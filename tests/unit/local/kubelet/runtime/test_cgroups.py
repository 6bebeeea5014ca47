"""Limits in the formats of control groups version 1 and 2."""

from pathlib import Path

import pytest

from gangline.local.kubelet.runtime.cgroups import ControlGroups
from gangline.local.kubelet.runtime.interface import ContainerLimits, ContainerUsage

LIMITS = ContainerLimits(cpu_request_milli=250, cpu_limit_milli=1500, memory_bytes=1 << 20)


class FakeKernel:
    """Folders like a mounted hierarchy, with the files that the kernel would create."""

    def __init__(self, mount: Path, *, unified: bool) -> None:
        self.mount = mount
        self.unified = unified
        roots = [mount] if unified else [mount / name for name in ("memory", "cpu", "cpuacct")]
        for root in roots:
            (root / "c" / "i").mkdir(parents=True)
            for folder in (root, root / "c", root / "c" / "i"):
                (folder / "cgroup.procs").touch()
                (folder / "cgroup.subtree_control").touch()
        if unified:
            (mount / "cgroup.controllers").write_text("cpu memory")

    def make(self, name: str, text: str = "") -> Path:
        folders = ("",) if self.unified else ("memory", "cpu", "cpuacct")
        controller = name.split(".", maxsplit=1)[0]
        top = next(folder for folder in folders if folder in ("", controller))
        path = self.mount / top / "c" / "i" / name
        path.write_text(text)
        return path


def test_version_one_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, unified=False)
    limit = kernel.make("memory.limit_in_bytes")
    shares, quota = kernel.make("cpu.shares"), kernel.make("cpu.cfs_quota_us")
    kernel.make("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    kernel.make("memory.usage_in_bytes", "1000")
    kernel.make("memory.stat", "inactive_file 1\ntotal_inactive_file 300\n")
    kernel.make("cpuacct.usage", "77")
    group = ControlGroups("c", tmp_path).create("i", LIMITS)
    assert group is not None
    assert [path.read_text() for path in (limit, shares, quota)] == ["1048576", "256", "150000"]
    assert group.oom_killed()
    assert group.limits_memory
    assert group.usage() == ContainerUsage(77, 700)
    assert len(group.procs_files) == 3


def test_version_two_has_one_folder(tmp_path: Path) -> None:
    kernel = FakeKernel(tmp_path, unified=True)
    limit, together = kernel.make("memory.max"), kernel.make("memory.oom.group")
    weight, quota = kernel.make("cpu.weight"), kernel.make("cpu.max")
    kernel.make("memory.events", "low 0\noom 3\noom_kill 0\n")
    kernel.make("memory.current", "1000")
    kernel.make("memory.stat", "inactive_file 100\n")
    kernel.make("cpu.stat", "usage_usec 5\n")
    group = ControlGroups("c", tmp_path).create("i", LIMITS)
    assert group is not None
    written = [path.read_text() for path in (limit, together, weight, quota)]
    assert written == ["1048576", "1", "10", "150000 100000"]
    assert not group.oom_killed()
    assert group.usage() == ContainerUsage(5000, 900)


def test_limits_memory_is_false_without_kernel_support(tmp_path: Path) -> None:
    FakeKernel(tmp_path, unified=True)
    group = ControlGroups("c", tmp_path).create("i", LIMITS)
    assert group is not None
    assert not group.limits_memory
    assert group.usage() is None


@pytest.mark.parametrize("unified", [False, True])
def test_without_a_hierarchy_there_are_no_groups(tmp_path: Path, unified: bool) -> None:
    if unified:
        (tmp_path / "cgroup.controllers").touch()
    groups = ControlGroups("c", tmp_path)
    assert not groups.usable
    assert groups.create("i", LIMITS) is None
