"""Mounts at places that a container or another user replaces after the checks."""

import asyncio
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.local.kubelet.runtime.cgroups import ControlGroups
from gangline.local.kubelet.runtime.interface import (
    ContainerMount,
    ContainerPlan,
    ContainerStartError,
)
from gangline.local.kubelet.runtime.isolation import IsolationLevel, detect_isolation
from gangline.local.kubelet.runtime.mount_namespace import (
    Bind,
    Cover,
    MountNamespace,
    MountOrders,
    helper_command,
)
from gangline.local.kubelet.runtime.process_runtime import ProcessRuntime
from integration.kubelet.conftest import remove_groups
from unit.local.kubelet import builders

pytestmark = pytest.mark.skipif(
    detect_isolation().level is IsolationLevel.NONE, reason="needs mount namespaces"
)

USERS = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


def a_plan(
    tmp_path: Path, script: str, *mounts: ContainerMount, workdir: str = "/"
) -> ContainerPlan:
    state = tmp_path / "state"
    return builders.a_plan(state, "sh", "-c", script, mounts=mounts, workdir=workdir)


async def run(plan: ContainerPlan) -> tuple[int, str]:
    """The exit code and output of a container."""
    output: list[bytes] = []
    name = f"gangline-test-{os.getpid()}"
    runtime = ProcessRuntime(detect_isolation(), ControlGroups(name))
    container = await runtime.start(plan, lambda _, data: output.append(data))
    ended = await container.wait()
    remove_groups(name)
    return ended.code, b"".join(output).decode()


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    """A volume with a folder, beside a folder that nothing may be written to."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "volume/part").mkdir(parents=True)
    (tmp_path / "volume/part/file").write_text("part\n")
    return tmp_path / "volume"


async def test_mount_point_behind_a_link_is_that_of_the_container(
    volume: Path, tmp_path: Path
) -> None:
    """A link in a volume means a path of the container, as in container engines."""
    (volume / "link").symlink_to("/gangline-elsewhere")
    (volume / "up").symlink_to("../gangline-other")
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("other\n")
    plan = a_plan(
        tmp_path,
        "cat /gangline-elsewhere/x/file /gangline-other/y/file /data/in/z/file",
        ContainerMount(volume, "/data"),
        ContainerMount(other, "/data/link/x"),
        ContainerMount(other, "/data/up/y"),
        ContainerMount(other, "/data/in/z", read_only=True),
    )
    assert await run(plan) == (0, "other\n" * 3)
    assert sorted(os.listdir(volume)) == ["in", "link", "part", "up"]
    assert "gangline-elsewhere" not in os.listdir("/")


async def test_link_to_a_folder_of_the_machine_is_not_written_through(
    volume: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (volume / "link").symlink_to(outside)
    file = tmp_path / "message"
    file.touch()
    plan = a_plan(
        tmp_path,
        "true",
        ContainerMount(volume, "/data"),
        ContainerMount(volume, "/data/link/new"),
        ContainerMount(file, "/data/link/message"),
        workdir="/data/link/work",
    )
    assert await run(plan) == (0, "")
    assert os.listdir(outside) == []


async def test_link_that_appears_after_the_check_fails_the_start(
    volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    (volume / "a").mkdir()

    def replace(view: MountNamespace) -> str:
        script = write(view)
        (volume / "a/x").rmdir()
        (volume / "a").rmdir()
        (volume / "a").symlink_to(outside)
        return script

    write: Callable[[MountNamespace], str] = MountNamespace.write_script
    monkeypatch.setattr(MountNamespace, "write_script", replace)
    mounts = (ContainerMount(volume, "/data"), ContainerMount(volume / "part", "/data/a/x"))
    with pytest.raises(ContainerStartError, match="cannot mount at /data/a/x: Too many levels"):
        await run(a_plan(tmp_path, "true", *mounts))
    assert os.listdir(outside) == []


async def test_part_that_becomes_a_link_after_the_check_fails_the_start(
    volume: Path, tmp_path: Path
) -> None:
    mount = ContainerMount(volume / "part", "/data", volume=volume, sub_path="part")
    plan = a_plan(tmp_path, "cat /data/file", mount)
    assert await run(plan) == (0, "part\n")
    (volume / "part").rename(volume / "away")
    (volume / "part").symlink_to("/etc")
    with pytest.raises(ContainerStartError, match="cannot mount at /data: Invalid cross-device"):
        await run(a_plan(tmp_path, "cat /data/passwd", mount))


async def test_read_only_part_stays_read_only(volume: Path, tmp_path: Path) -> None:
    mount = ContainerMount(volume / "part", "/data", True, volume, "part")
    code, output = await run(a_plan(tmp_path, "cat /data/file; touch /data/x", mount))
    assert (code, output.splitlines()[0]) == (1, "part")
    assert os.listdir(volume / "part") == ["file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a folder of another user")
async def test_mount_point_in_a_folder_of_another_user(volume: Path, tmp_path: Path) -> None:
    home = Path("/var/tmp") / f"gangline-home-{os.getpid()}"
    home.mkdir()
    os.chown(home, 4321, 4321)
    (home / "kept").write_text("kept\n")
    try:
        plan = a_plan(
            tmp_path,
            f"cd {home}; cat kept new/data/file; pwd",
            ContainerMount(volume / "part", str(home / "new/data")),
            workdir=str(home / "work"),
        )
        assert await run(plan) == (0, f"kept\npart\n{home}\n")
        assert os.listdir(home) == ["kept"]
    finally:
        await asyncio.to_thread(subprocess.run, ["rm", "-r", home], check=True)


async def test_mount_paths_of_any_characters(volume: Path, tmp_path: Path) -> None:
    """Else a line end in a mount path begins an entry of the mount table: any device of root."""
    part = ContainerMount(volume / "part", "")
    paths = [
        "/gangline-mount\n/dev/null /etc/passwd none bind",
        "/gangline-mount\t#tab",
        "/gangline-mount \\012",
        "#/gangline-mount",
        "/gangline-mount 'quoted' \"$(touch x)\"",
    ]
    mounts = [replace(part, target=f"/{path.lstrip('/')}") for path in paths]
    shown = "; ".join(f"cat {shlex.quote(mount.target)}/file" for mount in mounts)
    script = f"{shown}; test -s /etc/passwd && echo passwd"
    assert await run(a_plan(tmp_path, script, *mounts)) == (0, "part\n" * len(paths) + "passwd\n")


async def test_covered_folder_of_any_characters(volume: Path, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix='a,upperdir=x:"b') as folder:
        mount = ContainerMount(volume / "part", f"{folder}/new")
        script = f"cat {shlex.quote(mount.target)}/file"
        assert await run(a_plan(tmp_path, script, mount)) == (0, "part\n")
        assert os.listdir(folder) == []


def test_covered_folder_that_becomes_a_link_is_refused(volume: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "home").symlink_to("/etc")
    cover = Cover("/home", str(tmp_path / "upper"), str(tmp_path / "work"))
    done = carry_out(tmp_path, MountOrders(str(root), covers=[cover]))
    assert (done.returncode, done.stderr) == (
        1,
        "cannot mount at /home: Too many levels of symbolic links at 'home'\n",
    )


def test_orders_are_carried_out_without_the_new_system_call(volume: Path, tmp_path: Path) -> None:
    """The same mounts by a process in which ``openat2`` does not exist."""
    root = tmp_path / "root"
    root.mkdir()
    orders = MountOrders(str(root), binds=[Bind("/made/here", str(volume), "part")])
    before = "import gangline.local.kubelet.files.beneath as b; b._OPENAT2 = 9999"
    done = carry_out(tmp_path, orders, before)
    assert (done.returncode, done.stderr) == (0, "")
    assert (root / "made/here").is_dir()


def carry_out(
    tmp_path: Path, orders: MountOrders, before: str = "pass"
) -> subprocess.CompletedProcess[str]:
    """Run the helper in a mount namespace of its own."""
    path = tmp_path / "orders"
    orders.write(path)
    command = helper_command(path)
    boot = command.index("-c") + 1
    command[boot] = command[boot].replace("from gangline", f"{before}; from gangline", 1)
    return subprocess.run(
        ["unshare", *USERS, "--mount", "--", *command], capture_output=True, text=True, check=False
    )
