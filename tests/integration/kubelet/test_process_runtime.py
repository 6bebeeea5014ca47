"""The process runtime, on this machine with the permissions of the test user."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.local.kubelet.runtime.cgroups import ControlGroups
from gangline.local.kubelet.runtime.interface import (
    ContainerExit,
    ContainerIdentity,
    ContainerLimits,
    ContainerMount,
    ContainerPlan,
    ContainerStartError,
)
from gangline.local.kubelet.runtime.isolation import detect_isolation
from gangline.local.kubelet.runtime.process_runtime import ProcessRuntime
from integration.kubelet.conftest import remove_groups
from unit.local.kubelet.builders import PATH, a_plan

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


class Output:
    """Collects the output of a container."""

    def __init__(self) -> None:
        self.stdout = b""
        self.stderr = b""

    def __call__(self, stream: str, data: bytes) -> None:
        setattr(self, stream, getattr(self, stream) + data)


@pytest.fixture
def runtime() -> Iterator[ProcessRuntime]:
    name = f"gangline-test-{os.getpid()}"
    yield ProcessRuntime(detect_isolation(), ControlGroups(name))
    remove_groups(name)


async def run(runtime: ProcessRuntime, plan: ContainerPlan) -> tuple[ContainerExit, Output]:
    output = Output()
    container = await runtime.start(plan, output)
    return await container.wait(), output


async def test_a_command_runs_as_process_one(runtime: ProcessRuntime, tmp_path: Path) -> None:
    _, output = await run(runtime, a_plan(tmp_path, "sh", "-c", "echo $$"))
    assert output.stdout == b"1\n"


ODD_VARIABLES = {
    "PATH": PATH,
    "odd.name-1": "a b\nc\n",
    "with space": "$PATH ${E0} \\ 'single' \"double\" # no comment",
    "-n": "dash",
    "EMPTY": "",
    "E0": "a name of the commands before",
    "LD_LIBRARY_PATH": "./nowhere",
    "BIG": "x" * 100_000,
    "BYTES": b"\xff\xfe".decode("utf-8", "surrogateescape"),
}


@pytest.mark.parametrize("user", [None, pytest.param(4321, marks=ROOT)])
async def test_environment_is_exactly_that_of_the_plan(
    runtime: ProcessRuntime, tmp_path: Path, user: int | None
) -> None:
    identity = ContainerIdentity(user, user)
    argv = ("cat", "/proc/self/environ")
    plan = a_plan(tmp_path, *argv, env=ODD_VARIABLES, identity=identity)
    wanted = [
        f"{name}={value}".encode(errors="surrogateescape") for name, value in ODD_VARIABLES.items()
    ]
    ended, output = await run(runtime, plan)
    assert (ended.code, output.stderr) == (0, b"")
    assert output.stdout.split(b"\0")[:-1] == wanted


async def test_environment_of_an_exec_session_is_the_containers(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    container = await runtime.start(a_plan(tmp_path, "sleep", "60", env=ODD_VARIABLES), Output())
    output = Output()
    session = await container.exec(["cat", "/proc/self/environ"], output)
    assert await session.wait() == 0
    assert len(output.stdout.split(b"\0")) == len(ODD_VARIABLES) + 1
    container.kill()
    await container.wait()


async def test_a_variable_with_a_nul_character_is_a_start_error(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    with pytest.raises(ContainerStartError, match="NUL"):
        await run(runtime, a_plan(tmp_path, "true", env={"PATH": PATH, "A": "a\0b"}))
    container = await runtime.start(a_plan(tmp_path, "sleep", "60"), Output())
    with pytest.raises(ContainerStartError, match="null byte"):
        await container.exec(["echo", "a\0b"], Output())
    container.kill()
    await container.wait()


@ROOT
async def test_linker_variables_do_not_run_code_as_root(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    compile_preload(volume / "p.so")
    env = {"PATH": PATH, "LD_PRELOAD": "./data/p.so"}
    mounts = (ContainerMount(volume, "/data"),)
    identity = ContainerIdentity(4321, 4321)
    plan = a_plan(tmp_path, "true", env=env, mounts=mounts, identity=identity)
    _, output = await run(runtime, plan)
    assert b"uid 4321" in output.stderr
    assert b"uid 0" not in output.stderr


async def test_volumes_appear_where_the_machine_has_no_folder(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    volume = tmp_path / "vol with space"
    volume.mkdir()
    (volume / "f").write_text("inside")
    mounts = (
        ContainerMount(volume, "/gangline-top/x"),
        ContainerMount(volume, "/etc/gangline-new/y", read_only=True),
        ContainerMount(volume, "/usr/share/gangline-new"),
        ContainerMount(volume / "f", "/etc/gangline-file"),
        ContainerMount(volume, "/gangline-top/x/nested"),
        ContainerMount(volume, "/var/run/secrets/here"),
    )
    script = (
        "set -e; cat /gangline-top/x/f /etc/gangline-new/y/f /usr/share/gangline-new/f "
        "/etc/gangline-file /gangline-top/x/nested/f /var/run/secrets/here/f; "
        "echo new >/gangline-top/x/g; test -e /etc/passwd; test -d /usr/share/doc; pwd; "
        "! touch /etc/gangline-new/y/no 2>/dev/null"
    )
    plan = a_plan(tmp_path, "sh", "-c", script, mounts=mounts, workdir="/made/up")
    ended, output = await run(runtime, plan)
    assert output.stderr == b""
    assert (ended.code, output.stdout) == (0, b"inside" * 6 + b"/made/up\n")
    assert (volume / "g").read_text() == "new\n"
    made = ["/gangline-top", "/etc/gangline-new", "/etc/gangline-file", "/made"]
    assert not existing(made)


@pytest.mark.parametrize("image", [False, True])
async def test_a_read_only_root_leaves_volumes_writable(
    runtime: ProcessRuntime, tmp_path: Path, image: bool
) -> None:
    volume, root = tmp_path / "volume", tmp_path / "image"
    volume.mkdir()
    mounts = [ContainerMount(volume, "/tmp/inside")]
    places = "/made /usr/made /etc/made /tmp/made"
    if image:
        for name in ("usr", "tmp"):
            (root / name).mkdir(parents=True)
        for name in ("bin", "lib", "lib64"):
            (root / name).symlink_to(f"usr/{name}")
        mounts.append(ContainerMount(Path("/usr"), "/usr", read_only=True))
        places = "/made /tmp/made"
    script = (
        f"for at in {places}; do if touch $at 2>/dev/null; then echo $at; fi; done; "
        "set -e; echo 1 >/tmp/inside/made; echo 1 >/dev/shm/made; cat /tmp/inside/made"
    )
    plan = a_plan(
        tmp_path, "/usr/bin/sh", "-c", script, mounts=tuple(mounts), read_only_root=True,
        root=root if image else None,
    )  # fmt: skip
    ended, output = await run(runtime, plan)
    assert (ended.code, output.stdout) == (0, b"1\n"), output.stderr


async def test_temporary_files_are_private(runtime: ProcessRuntime, tmp_path: Path) -> None:
    plan = a_plan(tmp_path, "sh", "-c", "ls -A /tmp /run /dev/shm; echo x >/tmp/gangline-private")
    ended, output = await run(runtime, plan)
    assert (ended.code, output.stdout) == (0, b"/dev/shm:\n\n/run:\n\n/tmp:\n")
    assert not existing(["/tmp/gangline-private"])


async def test_a_script_whose_interpreter_is_missing_cannot_run(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    plan = a_plan(tmp_path, "/script", mounts=(ContainerMount(script, "/script"),))
    ended, _ = await run(runtime, plan)
    assert (ended.reason, ended.code) == ("ContainerCannotRun", 127)
    assert '"/script": no such file or directory' in ended.message


async def test_missing_volume_folder_is_a_start_error(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    mounts = (ContainerMount(tmp_path / "gone", "/data"),)
    with pytest.raises(ContainerStartError) as caught:
        await run(runtime, a_plan(tmp_path, "true", mounts=mounts))
    assert caught.value.reason == "StartError"
    assert "gone" in caught.value.message


async def test_kill_ends_daemons_as_well(runtime: ProcessRuntime, tmp_path: Path) -> None:
    tag = f"31.{os.getpid()}"
    script = f"(setsid sleep {tag} </dev/null >/dev/null 2>&1 &); echo up; sleep {tag}"
    output = Output()
    container = await runtime.start(a_plan(tmp_path, "sh", "-c", script), output)
    while b"up" not in output.stdout:
        await asyncio.sleep(0.01)
    container.kill()
    ended = await container.wait()
    assert ended.code == 137
    assert not processes_with(tag)


async def test_exec_runs_beside_the_main_process(runtime: ProcessRuntime, tmp_path: Path) -> None:
    plan = a_plan(tmp_path, "sh", "-c", "touch /tmp/mark; sleep 60", workdir="/usr")
    container = await runtime.start(plan, Output())
    output = Output()
    script = "cat; until test -e /tmp/mark; do :; done; ls /tmp; pwd; exit 5"
    session = await container.exec(["sh", "-c", script], output, stdin=True)
    session.write(b"fed\n")
    session.close_stdin()
    assert await session.wait() == 5
    assert output.stdout == b"fed\nmark\n/usr\n"
    container.kill()
    await container.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="without control groups only the tree is watched")
async def test_exec_counts_against_the_containers_limit(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    plan = a_plan(tmp_path, "sleep", "60", limits=ContainerLimits(memory_bytes=64 << 20))
    container = await runtime.start(plan, Output())
    hog = ["/usr/bin/python3", "-S", "-c", "b = bytearray(200 << 20); import time; time.sleep(20)"]
    session = await container.exec(hog, Output())
    assert await session.wait() == 137
    container.kill()
    assert (await container.wait()).oom_killed


async def test_exec_with_a_terminal_knows_its_size(runtime: ProcessRuntime, tmp_path: Path) -> None:
    container = await runtime.start(a_plan(tmp_path, "sleep", "60"), Output())
    output = Output()
    session = await container.exec(
        ["sh", "-c", "read x; stty size; tty; echo $TERM"],
        output,
        stdin=True,
        tty=True,
    )
    session.resize(99, 44)
    session.write(b"go\n")
    code = await session.wait()
    assert (code, output.stderr) == (0, b""), output.stdout
    assert b"44 99\r\n/dev/pts/0\r\nxterm\r\n" in output.stdout
    container.kill()
    await container.wait()


async def test_an_ended_exec_session_leaves_no_process(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    container = await runtime.start(a_plan(tmp_path, "sleep", "60"), Output())
    tag = f"32.{os.getpid()}"
    output = Output()
    session = await container.exec(["sh", "-c", f"echo up; sleep {tag}; :"], output)
    while b"up" not in output.stdout:
        await asyncio.sleep(0.01)
    session.kill()
    assert await session.wait() == 137
    async with asyncio.timeout(60):
        while processes_with(tag):
            await asyncio.sleep(0.01)
    container.kill()
    await container.wait()


async def test_an_image_folder_becomes_the_root_and_is_never_written_to(
    runtime: ProcessRuntime, tmp_path: Path
) -> None:
    image, volume = tmp_path / "image:1", tmp_path / "volume"
    an_image(image)
    volume.mkdir()
    (image / "etc").mkdir()
    script = "echo x >/etc/new; ls /; cat /etc/new; cat /data/f; pwd; ls /dev/null"
    (volume / "f").write_text("volume\n")
    plan = a_plan(
        tmp_path,
        *("/bin/sh", "-c", script),
        root=image,
        workdir="/work",
        mounts=(ContainerMount(volume, "/data"), ContainerMount(volume / "f", "/etc/hosts")),
    )
    ended, output = await run(runtime, plan)
    assert output.stderr == b""
    assert ended.code == 0
    names = output.stdout.split(b"\n")
    assert {b"bin", b"data", b"dev", b"etc", b"proc", b"work"} <= set(names)
    assert b"home" not in names
    assert names[-5:] == [b"x", b"volume", b"/work", b"/dev/null", b""]
    assert not (image / "etc/new").exists()
    with pytest.raises(ContainerStartError):
        await run(runtime, a_plan(tmp_path, "/usr/bin/python3", root=image))


def an_image(folder: Path) -> None:
    """A root folder with a shell and its libraries."""
    for program in ("/bin/sh", "/bin/cat", "/bin/ls"):
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        libraries = [word for word in listed.stdout.split() if word.startswith("/")]
        for path in (program, *libraries):
            place = folder / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)


def compile_preload(library: Path) -> None:
    """A library that writes the user id of each process that loads it."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    source = library.with_suffix(".c")
    source.write_text(
        "#include <stdio.h>\n#include <unistd.h>\n__attribute__((constructor)) "
        'static void f(void) { dprintf(2, "uid %d\\n", geteuid()); }'
    )
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)


def existing(paths: list[str]) -> list[str]:
    return [path for path in paths if Path(path).exists()]


def processes_with(tag: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if f"sleep {tag}" in line:
                found.append(line)
    return found
