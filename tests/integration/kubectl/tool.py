"""Running kubectl as users do: commands, streams, and a terminal."""

import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

COMMAND_WITHIN_S = 60.0
OUTPUT_WITHIN_S = 20.0
POLLED_EVERY_S = 0.1


@dataclass(frozen=True)
class Kubectl:
    """One kubectl for one cluster and one namespace."""

    program: str
    kubeconfig: Path
    folder: Path
    namespace: str
    old: bool
    """Whether it is the 1.20 of Debian bookworm."""

    def command(self, *arguments: str) -> list[str]:
        """The complete command line."""
        cache = f"--cache-dir={self.folder / 'cache'}"
        return [self.program, cache, f"--namespace={self.namespace}", *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        """The environment that the command gets."""
        own = {"KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder), "NO_COLOR": "1"}
        return {**os.environ, **own, **more}

    def run(self, *arguments: str, text: str = "", **more: str) -> tuple[int, str]:
        """Run a command. Returns its exit code and its output."""
        done = subprocess.run(
            self.command(*arguments),
            input=text.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment(**more),
            cwd=self.folder,
            timeout=COMMAND_WITHIN_S,
            check=False,
        )
        return done.returncode, done.stdout.decode(errors="replace")

    def __call__(self, line: str, *more: str, text: str = "") -> str:
        """Run a command that must succeed. Returns its output."""
        code, output = self.run(*line.split(), *more, text=text)
        assert code == 0, f"{line} {more}: {output}"
        return output

    def refused(self, line: str, *more: str, text: str = "") -> str:
        """Run a command that must fail. Returns its output."""
        code, output = self.run(*line.split(), *more, text=text)
        assert code != 0, f"{line} {more}: {output}"
        return output

    def field(self, what: str, path: str) -> str:
        """One field of one object, by JSONPath without the braces."""
        return self(f"get {what} -o", f"jsonpath={{{path}}}")

    def until(self, what: str, path: str, value: str) -> None:
        """Wait until a field has a value."""
        until(lambda: self.field(what, path) == value, lambda: self(f"get {what} -o yaml"))

    @contextmanager
    def going(self, *arguments: str) -> Iterator["Stream"]:
        """Run a command in the background; it is stopped at the end of the block."""
        process = subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment(),
            cwd=self.folder,
        )
        assert process.stdout is not None
        with process:
            try:
                yield Stream(process, process.stdout.fileno())
            finally:
                process.kill()

    @contextmanager
    def on_terminal(self, *arguments: str, rows: int, columns: int) -> Iterator["Stream"]:
        """A command with a terminal of its own."""
        control, side = os.openpty()
        resize(control, rows, columns)
        # setsid --ctty: without it no process receives SIGWINCH.
        process = subprocess.Popen(
            ["setsid", "--ctty", *self.command(*arguments)],
            stdin=side,
            stdout=side,
            stderr=side,
            env=self.environment(),
            cwd=self.folder,
        )
        os.close(side)
        with process:
            try:
                yield Stream(process, control)
            finally:
                process.kill()
                os.close(control)


def resize(terminal: int, rows: int, columns: int) -> None:
    """Set the size of a terminal."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@dataclass
class Stream:
    """The output of a running command."""

    process: subprocess.Popen[bytes]
    descriptor: int
    output: str = ""

    def read_until(self, texts: str, times: int = 1) -> str:
        """Read until ``texts`` occurred ``times`` times. Returns all output."""
        ends = time.monotonic() + OUTPUT_WITHIN_S
        while self.output.count(texts) < times:
            assert self._read(ends), f"{texts!r} was not output: {self.output}"
        return self.output

    def read_to_end(self) -> int:
        """Read the remaining output. Returns the exit code."""
        ends = time.monotonic() + OUTPUT_WITHIN_S
        while self._read(ends):
            pass
        return self.process.wait(OUTPUT_WITHIN_S)

    def write(self, text: str) -> None:
        """Type something (on a terminal)."""
        os.write(self.descriptor, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal."""
        resize(self.descriptor, rows, columns)

    def _read(self, ends: float) -> bool:
        readable, _, _ = select.select([self.descriptor], [], [], max(ends - time.monotonic(), 0))
        try:
            block = os.read(self.descriptor, 65536) if readable else b""
        except OSError:  # EIO: the last user of the terminal has closed it.
            block = b""
        self.output += block.decode(errors="replace")
        return bool(block)


def until(
    check: Callable[[], T], explain: Callable[[], object] = lambda: "", within_s: float = 30.0
) -> T:
    """Wait until ``check`` gives something true, and return it."""
    ends = time.monotonic() + within_s
    while not (found := check()):
        assert time.monotonic() < ends, f"it did not come to that: {explain()}"
        time.sleep(POLLED_EVERY_S)
    return found
