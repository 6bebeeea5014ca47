"""The command line as a program: help, start-up imports, exit statuses, error messages."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from gangline.api.meta.objects import Status, StatusCause, StatusDetails
from gangline.cli import main
from gangline.cli.commands.completion import command_reference
from gangline.cli.errors import CommandError, ExitCode, to_command_error
from gangline.kube import errors as kube
from gangline.local.directory import ClusterAlreadyRunning, ClusterError, ClusterNotRunning
from gangline.sdk.client import AmbiguousJob, JobError, NoSuchJob, UnknownKind


def without_cluster(folder: Path) -> Path:
    """A kubeconfig of a cluster that does not run."""
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        "users: [{name: u, user: {}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    return kubeconfig


def test_help_names_every_command_without_importing_any(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["--help"]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert all(name in shown for name in main.COMMANDS)


def test_help_imports_click_and_nothing_else_that_is_installed() -> None:
    # What `--help` costs is what it imports; benchmarks/client/command_start.py has the time of it.
    script = (
        "import sys; before = set(sys.modules); import gangline.cli.main as m; m.run(['--help']);"
        "names = {n.split('.')[0] for n in set(sys.modules) - before};"
        "print(*sorted(names - sys.stdlib_module_names));"
        "print(*sorted(names & {'asyncio', 'ssl', 'http', 'email', 'subprocess', 'socket'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["click gangline", ""]


def test_to_complete_the_kind_of_a_job_loads_none_of_its_options() -> None:
    script = (
        "import sys, gangline.cli.main as m; m.run([]);"
        "print(*sorted(set(sys.modules) & {'gangline.cli.commands.submit', 'shutil', 'json',"
        " 'gangline.cli.submit.options', 'dataclasses', 'pathlib'}))"
    )
    args = {"COMP_WORDS": "gangline submit p", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | args | {"_GANGLINE_COMPLETE": "zsh_complete"},
        capture_output=True,
        text=True,
        check=True,
    )
    *offered, loaded = done.stdout.splitlines()
    assert offered[1::3] == ["paddle", "pytorch"]
    assert offered[2] == "Start a PaddlePaddle job that runs COMMAND in each of its pods."
    assert loaded == "gangline.cli.commands.submit"


def test_list_imports_no_streams_servers_or_metrics(tmp_path: Path) -> None:
    kubeconfig = without_cluster(tmp_path)
    script = (
        "import sys, gangline.cli.main as m;"
        f"m.run(['list', '-A', '--kubeconfig', {str(kubeconfig)!r}]);"
        "print(*sorted(set(sys.modules) & {'gangline.sdk.client', 'aiohttp', 'prometheus_client',"
        " 'http', 'rich', 'uvloop', 'gangline.api.core.core', 'gangline.kube.informers.informer'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["gangline.sdk.client"], done.stderr


@pytest.mark.parametrize("name", list(main.COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "demo" and not (Path(main.__file__).parent / "commands" / "demo.py").exists():
        pytest.skip("the demo comes with the examples")
    assert main.run([name, "--help"]) == ExitCode.DONE
    assert name in capsys.readouterr().out


def test_python_m_gangline_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gangline", "version", "--short"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == version("gangline")


def test_without_arguments_the_commands_of_the_first_hour_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run([]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert len([line for line in shown.splitlines() if line.startswith("  gangline ")]) == 5
    assert "gangline --help" in shown


def test_version_is_printed_by_option_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for arguments in (["--version"], ["-V"], ["version"]):
        assert main.run(arguments) == ExitCode.DONE
        printed.append(capsys.readouterr().out)
    assert printed == [f"gangline {version('gangline')} (Python {platform.python_version()})\n"] * 3


def test_a_mistyped_command_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["sumbit"]) == ExitCode.USAGE
    result = capsys.readouterr()
    assert "Did you mean 'submit'?" in result.err
    assert not result.out


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["list", "--colour"]) == ExitCode.USAGE
    assert "See 'gangline list --help'." in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_there_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", shell]) == ExitCode.DONE
    assert "_GANGLINE_COMPLETE" in capsys.readouterr().out


def test_the_reference_names_every_command_and_its_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.run(["reference"]) == ExitCode.DONE
    shown = capsys.readouterr().out
    for name in main.COMMANDS:
        assert f"\n## gangline {name}\n" in f"\n{shown}"
    for heading in ("gangline submit pytorch", "gangline top node", "gangline queue close"):
        assert f"## {heading}\n" in shown
    assert "| `--workers INTEGER RANGE` | Number of pods" in shown
    assert main.run(["reference", "list"]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert shown == f"{command_reference('list')}\n"
    assert "| Cluster | |" in shown
    assert "gangline list -A" in shown
    assert main.run(["reference", "nothing"]) == ExitCode.USAGE


def status(reason: str, message: str = "it went wrong", **details: object) -> Status:
    return Status(
        status="Failure",
        reason=reason,
        message=message,
        details=StatusDetails(**details) if details else None,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("error", "code", "fragment"),
    [
        (kube.Unreachable("no answer"), ExitCode.UNREACHABLE, "gangline up"),
        (kube.ConfigError("no configuration"), ExitCode.UNREACHABLE, "gangline up"),
        (kube.NotFound(status("NotFound")), ExitCode.NOT_FOUND, "gangline list -A"),
        (
            kube.NotFound(status("NotFound", kind="namespaces", name="team")),
            ExitCode.NOT_FOUND,
            "kubectl create namespace team",
        ),
        (kube.AlreadyExists(status("AlreadyExists")), ExitCode.EXISTS, "gangline delete"),
        (kube.Invalid(status("Invalid")), ExitCode.USAGE, "it went wrong"),
        (kube.Unauthorized(status("Unauthorized")), ExitCode.UNEXPECTED, "credentials"),
        (kube.Forbidden(status("Forbidden")), ExitCode.UNEXPECTED, "can-i"),
        (kube.ServerTimeout(status("ServerTimeout")), ExitCode.UNEXPECTED, "it went wrong"),
        (NoSuchJob("no job x"), ExitCode.NOT_FOUND, "gangline list -A"),
        (AmbiguousJob("two jobs x"), ExitCode.USAGE, "two jobs x"),
        (UnknownKind("no kind x"), ExitCode.USAGE, "no kind x"),
        (JobError("not possible"), ExitCode.UNEXPECTED, "not possible"),
        (
            ClusterAlreadyRunning("spare", "by process 7"),
            ExitCode.EXISTS,
            "'gangline down --name spare' stops it",
        ),
        (ClusterNotRunning("it does not run"), ExitCode.NOT_FOUND, "it does not run"),
        (ClusterError("no port is free"), ExitCode.UNEXPECTED, "no port is free"),
        (PermissionError(13, "Permission denied", "/x"), ExitCode.UNEXPECTED, "/x: Permission"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted"),
        (ValueError("odd"), ExitCode.UNEXPECTED, "--debug"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_errors_become_a_message_and_an_exit_status(
    error: BaseException, code: ExitCode, fragment: str
) -> None:
    result = to_command_error(error)
    assert result.code == code
    assert fragment in f"{result.message} {result.hint}"


def test_single_error_of_task_group_is_explained() -> None:
    group = BaseExceptionGroup("tasks", [CommandError("why", code=ExitCode.EXISTS)])
    assert to_command_error(group).code == ExitCode.EXISTS


def test_every_mistake_of_a_refused_object_is_named() -> None:
    causes = [StatusCause(field=f"spec.f{index}", message=f"bad {index}") for index in range(40)]
    error = kube.Invalid(status("Invalid", kind="PyTorchJob", name="x", causes=causes))
    result = to_command_error(error).message
    assert "40 errors" in result
    assert all(f"spec.f{index}: bad {index}" in result for index in range(40))


def test_a_traceback_is_shown_with_debug_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main.run(["list"]) == ExitCode.UNREACHABLE
    assert "Traceback" not in capsys.readouterr().err
    for arguments in (["--debug", "list"], ["list", "--debug"]):
        assert main.run(arguments) == ExitCode.UNREACHABLE
        assert "Traceback" in capsys.readouterr().err


def test_unreachable_cluster_hint_names_gangline_up(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kubeconfig = without_cluster(tmp_path)
    assert main.run(["list", "--kubeconfig", str(kubeconfig)]) == ExitCode.UNREACHABLE
    assert "gangline up" in capsys.readouterr().err
