"""Programs that run in the interpreter of the model: the trace, and the calibration's processes."""

import contextlib
import json
import subprocess
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Any, TextIO

import click

from gangline.cli.errors import CommandError, ExitCode
from gangline.sizing.sources.timed_slice import PROGRESS

TRACE_TIMEOUT_S = 300
CALIBRATION_TIMEOUT_S = 900
POLL_S = 0.2


def run_trace(
    python: str, target: str, shape: str, *, token_ids: bool, measure: bool
) -> dict[str, Any]:
    """Trace a model in its own interpreter, or let it take two real steps.

    Raises:
        CommandError: it cannot be traced; the message has the reason.
    """
    command = [python, _program("trace"), target, "--input", shape]
    command += ["--tokens"] if token_ids else []
    command += ["--measure"] if measure else []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TRACE_TIMEOUT_S, check=False
        )
    except OSError as error:
        raise CommandError(f"--python: {error}", code=ExitCode.USAGE) from error
    except subprocess.TimeoutExpired:
        raise CommandError(f"the trace did not end within {TRACE_TIMEOUT_S} s") from None
    if done.returncode:
        hint = "Give the model by --config, --params or its dimensions."
        if not measure:
            hint = f"Let it take two real steps with --measure. {hint}"
        raise CommandError(
            f"{target} cannot be traced: {_reason(done.stderr)}", hint=hint, code=ExitCode.USAGE
        )
    return _last_object(done.stdout)


def run_calibration(python: str, slice_spec: dict[str, Any], processes: int) -> dict[str, Any]:
    """Time a slice of a model in ``processes`` processes of this node.

    Raises:
        CommandError: a process failed, or they did not end in time; the message has the reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "store"))
        started: list[subprocess.Popen[str]] = []
        try:
            for rank in range(processes):
                command = [python, _program("timed_slice"), "--rank", str(rank)]
                command += ["--ranks", str(processes), "--store", store, json.dumps(slice_spec)]
                with Path(folder, f"errors-{rank}").open("w") as errors:
                    started.append(
                        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
                    )
            with Path(folder, "errors-0").open() as said:
                codes = _wait(started, said)
            output = started[0].communicate()[0] if not any(codes) else ""
        except OSError as error:
            raise CommandError(f"--python: {error}", code=ExitCode.USAGE) from error
        finally:
            for process in started:
                process.kill()
                with process:  # waits, and closes its pipe
                    pass
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            reason = _reason(Path(folder, f"errors-{failed[0]}").read_text())
            raise CommandError(f"the slice cannot be timed: {reason}", code=ExitCode.USAGE)
    return _last_object(output)


def _wait(processes: "list[subprocess.Popen[str]]", progress: TextIO) -> list[int]:
    """Wait until all have ended, or one has failed: the others would wait for it.

    Lines of ``progress`` say what is timed next.
    """
    began = time.monotonic()
    deadline = began + CALIBRATION_TIMEOUT_S
    while True:
        for line in progress:
            if line.startswith(PROGRESS):
                passed = time.monotonic() - began
                click.echo(f"{passed:4.0f} s  {line.removeprefix(PROGRESS).strip()}", err=True)
        codes = [process.poll() for process in processes]
        if any(codes) or None not in codes:
            return [code or 0 for code in codes]
        if time.monotonic() > deadline:
            raise CommandError(f"the calibration did not end within {CALIBRATION_TIMEOUT_S} s")
        with contextlib.suppress(subprocess.TimeoutExpired):
            processes[codes.index(None)].wait(POLL_S)


def _program(name: str) -> str:
    return str(files("gangline.sizing.sources") / f"{name}.py")


def _reason(errors: str) -> str:
    return errors.strip().rpartition("\n")[2] or "no reason was given"


def _last_object(output: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(output.splitlines()[-1])
    return document
