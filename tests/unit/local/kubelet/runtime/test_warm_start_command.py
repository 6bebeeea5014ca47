"""Which containers may be forked from a fork server."""

from pathlib import Path
from typing import Any

import pytest

from gangline.forkserver import PLACEHOLDER
from gangline.local.kubelet.runtime.interface import ContainerPlan, WarmEnvironment
from gangline.local.kubelet.runtime.warm_start import default_key, server_key
from unit.local.kubelet import builders


@pytest.fixture
def environment(tmp_path: Path) -> WarmEnvironment:
    for name in ("python", "python3"):
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    return WarmEnvironment(("torch",), {"PATH": f"{tmp_path}:/usr/bin", "HOME": "/root", "X": "1"})


def a_plan(environment: WarmEnvironment | None, *argv: str, **changes: Any) -> ContainerPlan:
    variables = dict(environment.variables) if environment else {}
    env = {**variables, "RANK": "0", **changes.pop("env", {})}
    return builders.a_plan(Path("/"), *argv, **({"env": env, "warm": environment} | changes))


@pytest.mark.parametrize(
    "argv", [("python", "train.py", "-m"), ("python", "-m", "train"), ("python", "-c", "print()")]
)
def test_plain_commands_share_the_server_of_the_environment(
    environment: WarmEnvironment, argv: tuple[str, ...]
) -> None:
    key = server_key(a_plan(environment, *argv, env={"X": "2", "SECRET": "s"}))
    assert key is not None
    assert key == default_key(environment)
    assert "SECRET" not in dict(key.variables)


def test_what_an_interpreter_reads_at_its_start_has_a_server_of_its_own(
    environment: WarmEnvironment,
) -> None:
    default = default_key(environment)
    for argv, env in (
        (("python", "-u", "train.py"), {}),
        (("python3", "train.py"), {}),
        (("python", "train.py"), {"PYTHONUNBUFFERED": "1"}),
        (("python", "train.py"), {"LANG": "de_DE.UTF-8"}),
        (("python", "train.py"), {"HOME": "/tmp"}),
    ):
        key = server_key(a_plan(environment, *argv, env=env))
        assert key not in (None, default), (argv, env)


@pytest.mark.parametrize(
    ("argv", "changes"),
    [
        (("python",), {}),
        (("python", "-"), {}),
        (("python", "-m"), {}),
        (("python", "-i", "train.py"), {}),
        (("python", "-X", "dev", "train.py"), {}),
        (("python", "-I", "train.py"), {}),
        (("/usr/bin/python", "train.py"), {}),
        (("torchrun", "train.py"), {}),
        (("python", PLACEHOLDER), {}),
        (("python", "train.py", "x" * 200_000), {}),
        (("python", "train.py"), {"tty": True}),
        (("python", "train.py"), {"stdin": True}),
        (("python", "train.py"), {"root": Path("/image")}),
        (("python", "train.py"), {"env": {"PATH": "/usr/bin"}}),
        (("python", "train.py"), {"warm": None}),
    ],
)
def test_doubtful_command_starts_cold(
    environment: WarmEnvironment, argv: tuple[str, ...], changes: dict[str, Any]
) -> None:
    assert server_key(a_plan(environment, *argv, **changes)) is None


def test_environment_without_python_has_no_server(tmp_path: Path) -> None:
    assert default_key(WarmEnvironment(("torch",), {"PATH": str(tmp_path)})) is None
