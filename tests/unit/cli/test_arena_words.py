"""Words that Arena's users type: aliases, global flags, flags and commands that Gangline lacks."""

import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from gangline.cli import main
from gangline.cli.errors import ExitCode
from unit.cli.test_usual_mistakes import SUBMIT, Typed, add_job, typed
from unit.tool_modules import load_tool

__all__ = ["typed"]

ROOT = Path(__file__).parents[3]


async def test_aliases_are_the_commands(api: Any, typed: Typed) -> None:
    add_job(api, "digits")
    assert (await typed("ls")).out == (await typed("list")).out
    assert "digits" in (await typed("ls")).out
    assert (await typed("del", "digits", "-y")).code == ExitCode.DONE
    assert (await typed("log", "digits")).code == ExitCode.NOT_FOUND


async def test_global_flags_before_the_command_select_the_cluster(api: Any, typed: Typed) -> None:
    add_job(api, "digits")
    assert "digits" in (await typed("-n", "default", "ls")).out
    assert "digits" not in (await typed("--namespace", "other", "ls")).out
    behind = await typed("--namespace", "other", "ls", "-n", "default")
    assert "digits" in behind.out
    missing = await typed("--config", "/missing", "ls")
    assert "/missing" in missing.err


@pytest.mark.parametrize("behind", [False, True])
async def test_global_flags_without_a_use_are_named(api: Any, typed: Typed, behind: bool) -> None:
    flags = ("--arena-namespace", "kube-ai", "--pprof", "--loglevel", "info")
    done = await typed(*(("ls", *flags) if behind else (*flags, "ls")))
    assert done.code == ExitCode.DONE
    assert "--arena-namespace has no effect" in done.err
    assert "--pprof has no effect" in done.err


@pytest.mark.parametrize("name", ["serve", "model", "evaluate", "llm", "cron"])
def test_command_of_arena_alone_names_what_to_use(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([name, "anything", "--with=flags"]) == ExitCode.USAGE
    assert "Gangline" in capsys.readouterr().err


async def test_logviewer_prints_a_command_that_prints_the_log(api: Any, typed: Typed) -> None:
    add_job(api, "digits")
    done = await typed("logviewer", "digits", "-T", "pytorch")
    assert done.code == ExitCode.DONE
    words = shlex.split(done.out)
    assert words[:3] == ["gangline", "logs", "digits"]
    assert words[-1] == "-f"
    command = main.gangline.get_command(click.Context(main.gangline), "logs")
    assert command is not None
    command.parse_args(click.Context(command, obj=main.InvocationState()), words[2:])
    assert (await typed("logviewer", "nosuch")).code == ExitCode.NOT_FOUND


@pytest.mark.parametrize("kind", ["rayjob", "rj", "spark", "volcanojob"])
def test_kind_of_arena_alone_names_what_to_use(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["submit", kind, "--name", "x"]) == ExitCode.USAGE
    refused = capsys.readouterr().err
    assert "apply a" in refused or "submit pytorch" in refused


@pytest.mark.parametrize("flags", [("--queue", "--workers", "2", "train"), ("--queue", "train")])
def test_queue_without_a_name_is_the_default_queue(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*SUBMIT, "--dry-run", *flags]) == ExitCode.DONE
    shown = capsys.readouterr()
    assert "default queue" in shown.err
    assert "queue" not in shown.out


def test_queue_with_a_name_is_that_queue(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*SUBMIT, "--dry-run", "--queue", "team", "train"]) == ExitCode.DONE
    assert "queue: team" in capsys.readouterr().out


def test_flags_of_et_without_a_use_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--spot-instance", "--max-wait-time", "60", "--ssh-secret=keys"]
    used = ["--job-backoff-limit", "3", "--worker-annotation", "a=b"]
    line = ["submit", "et", *SUBMIT[2:], "--dry-run", *flags, *used, "train"]
    assert main.run(line) == ExitCode.DONE
    shown = capsys.readouterr()
    notes = [flag.partition("=")[0] for flag in flags if flag.startswith("--")]
    assert all(f"{flag} has no effect" in shown.err for flag in notes)
    assert "restartCount: 3" in shown.out
    assert "a: b" in shown.out


def test_page_lists_every_command_and_flag_of_arena() -> None:
    tool = load_tool("arena_table")
    assert tool.PAGE.read_text() == tool.page(), "write it with python tools/arena_table.py"
