"""Output of workers: to files of each attempt, to the console, or to both.

Layout, as torchrun's: ``FOLDER/RUN_XXXX/attempt_K/LOCAL_RANK/{stdout.log,stderr.log,error.json}``.
"""

import asyncio
import codecs
import errno
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import IO

from gangline.elastic.agent.settings import LogSettings

log = logging.getLogger(__name__)

OUT, ERR = 1, 2
_MEMORY = Path("/dev/shm")
_IN_MEMORY = "_small_files"
"""Ending of the name of the folder in memory that replaces the folder of the run."""
_READ_BYTES = 1 << 16
_LINE_END = re.compile(r"(\r?\n|\r(?!\n|\Z))")
"""A carriage return at the end of what is known so far may be the first half of a line break."""
_UNFINISHED_S = 0.3
"""Time after which a line without an end is shown."""
_FULL_BYTES = 1 << 14
"""A disk with less free space counts as full."""


class LogFolderError(Exception):
    """The folder of the logs cannot be used."""


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """The files of one worker in one attempt."""

    stdout: Path | None
    """File of the standard output; None for the console."""
    stderr: Path | None
    teed_files: tuple[Path, ...]
    """Files whose lines the console shows as well."""
    error_file: Path
    stacks_file: Path

    @property
    def progress_file(self) -> Path:
        """The file that training code may touch in each step."""
        return self.stacks_file.with_name("progress")

    @property
    def metrics_file(self) -> Path:
        """The file to which trainers written for DLRover report their steps."""
        return self.stacks_file.with_name("runtime_metrics.json")

    @property
    def flight_pipe(self) -> Path:
        """Prefix of the name of the pipe that triggers NCCL's flight recorder."""
        return self.stacks_file.with_name("flight_recorder_")

    @property
    def flight_dump(self) -> Path:
        """Prefix of the name of the flight recorder's dumps."""
        return self.stacks_file.with_name("nccl_trace_rank_")


class LogFolder:
    """The files of one run."""

    def __init__(self, settings: LogSettings, run_id: str) -> None:
        """Create the folder of the run. Raises LogFolderError: it cannot be created."""
        self._settings = settings
        self._is_temporary = settings.folder is None
        self._is_in_memory = False
        """True if small files are in memory because the disk was full."""
        try:
            if settings.folder is not None:
                Path(settings.folder).mkdir(parents=True, exist_ok=True)
            name = f"{run_id.replace('/', '_')}_"
            self.path = Path(tempfile.mkdtemp(prefix=name, dir=settings.folder))
        except OSError as error:
            raise LogFolderError(f"--log-dir {settings.folder}: {error.strerror}") from error

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def is_full(self) -> bool:
        """True if nothing more can be written to the disk of this folder."""
        try:
            disk = os.statvfs(self.path)
        except OSError:
            return False
        has_files = disk.f_favail > 0 or disk.f_files == 0  # some file systems count none
        return not has_files or disk.f_bavail * disk.f_frsize < _FULL_BYTES

    def temporary_folders(self) -> list[Path]:
        """Return the folders that must be removed at the end, also those that do not exist yet."""
        asked = self._settings.redirects or self._settings.tee
        own = [self.path] if self._is_temporary and not asked else []
        return [*own, _MEMORY / f"{self.path.name}{_IN_MEMORY}"]

    def attempt_folder(self, number: int) -> Path:
        return self.path / f"attempt_{number}"

    def worker_files(self, attempt: int, local_rank: int, name: str = "") -> WorkerFiles:
        """Create the folder of a worker in an attempt; return its files.

        A full disk ends no training: then output goes to the console only, and small files are in
        memory.

        Args:
            name: of the folder; empty for the local rank.

        Raises:
            LogFolderError: there is no space in memory either.
        """
        folder = self.attempt_folder(attempt) / (name or str(local_rank))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError as error:
            log.warning("the output of this attempt is not written to files: %s", error)
            return self._console_only(self._memory_folder(folder), local_rank)
        teed = _streams_of_rank(self._settings.tee, local_rank)
        to_file = _streams_of_rank(self._settings.redirects, local_rank) | teed
        shown = self._settings.shown_ranks
        is_shown = shown is None or local_rank in shown
        only_shown = self._console_only(folder, local_rank)
        return replace(
            only_shown,
            stdout=folder / "stdout.log" if to_file & OUT else only_shown.stdout,
            stderr=folder / "stderr.log" if to_file & ERR else only_shown.stderr,
            teed_files=tuple(
                folder / name
                for bit, name in ((OUT, "stdout.log"), (ERR, "stderr.log"))
                if teed & bit and is_shown
            ),
        )

    def _console_only(self, folder: Path, local_rank: int) -> WorkerFiles:
        shown = self._settings.shown_ranks
        elsewhere = None if shown is None or local_rank in shown else Path(os.devnull)
        return WorkerFiles(elsewhere, elsewhere, (), folder / "error.json", folder / "stacks.txt")

    def _memory_folder(self, folder: Path) -> Path:
        try:
            own = _MEMORY / f"{self.path.name}{_IN_MEMORY}"
            if not self._is_in_memory:
                own.mkdir(mode=0o700)  # fails if another user has created it
                self._is_in_memory = True
            replacement = own / folder.relative_to(self.path)
            replacement.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LogFolderError(f"no space for files of the workers: {error}") from error
        return replacement

    def remove_if_temporary(self) -> None:
        for folder in self.temporary_folders():
            shutil.rmtree(folder, ignore_errors=True)


def _streams_of_rank(streams: int | dict[int, int], local_rank: int) -> int:
    return streams if isinstance(streams, int) else streams.get(local_rank, 0)


class _Consoles:
    """Standard output and error, which may be one terminal: no two sources share a line."""

    def __init__(self) -> None:
        self._unfinished: tuple[object, IO[str]] | None = None
        """The source of an unfinished line, and where it is."""

    def write(self, source: object, console: IO[str], prefix: str, text: str, end: str) -> None:
        """Write a line, or a part of it if ``end`` is empty."""
        if self._unfinished and self._unfinished[0] is source:
            prefix = ""
        elif self._unfinished:
            self._unfinished[1].write("\n")
        console.write(f"{prefix}{text}{end}")
        self._unfinished = None if end else (source, console)


class LogTee:
    """Copies lines of files to the console while they are written.

    As for torchrun a carriage return ends a line, so that the bars of scripts are seen. A line that
    stays unfinished is shown after a moment, too.
    """

    def __init__(self, settings: LogSettings, role: str) -> None:
        self._settings, self._role = settings, role
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = asyncio.Event()
        self._consoles = _Consoles()

    def start(self, streams: WorkerFiles, rank: int, local_rank: int) -> None:
        template = self._settings.prefix or f"[{self._role}{local_rank}]:"
        values = {"role_name": self._role, "rank": rank, "local_rank": local_rank}
        prefix = Template(template).safe_substitute(values)
        for path in streams.teed_files:
            follow = self._follow(path, prefix, is_error=path == streams.stderr)
            self._tasks.append(asyncio.create_task(follow))

    async def end(self) -> None:
        """Show the rest; return when all is shown."""
        self._ended.set()
        await asyncio.gather(*self._tasks)

    async def _follow(self, path: Path, prefix: str, *, is_error: bool) -> None:
        try:
            await self._copy_lines(path, prefix, is_error=is_error)
        except OSError as error:
            log.warning("output is not shown any more: %s", error)

    async def _copy_lines(self, path: Path, prefix: str, *, is_error: bool) -> None:
        console = sys.stderr if is_error else sys.stdout
        filters = self._settings.stderr_filters if is_error else self._settings.stdout_filters
        name = "filtered_stderr.log" if is_error else "filtered_stdout.log"
        with path.open("ab"):
            pass  # the file must exist: the worker may open it later than this process
        with (
            path.open("rb") as source,
            _open_filtered(path.parent.parent / name, filters) as filtered,
        ):
            line = ""
            async for text, end in self._parts(source):
                self._consoles.write(source, console, prefix, text, end)
                line = (line if text else "") + text
                if filtered and end and any(pattern in line for pattern in filters):
                    filtered.write(f"{prefix}{line}{end}")
                line = "" if end else line

    async def _parts(self, source: IO[bytes]) -> AsyncIterator[tuple[str, str]]:
        """Yield texts, each with a line break behind it, or with an empty text if more may come."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest, shown, seen_at = "", 0, time.monotonic()
        while True:
            was_last = self._ended.is_set()
            while piece := source.read(_READ_BYTES):
                *lines, rest = _LINE_END.split(rest + decoder.decode(piece))
                for line, end in zip(lines[::2], lines[1::2], strict=True):
                    if line or end != "\r":  # a bar begins with a carriage return
                        yield line[shown:], "\n"
                    shown = 0
                seen_at = time.monotonic()
            if was_last:
                break
            text = rest.removesuffix("\r")
            if len(text) > shown and time.monotonic() - seen_at > _UNFINISHED_S:
                yield text[shown:], ""
                shown = len(text)
            await self._wait_for_output()
        if rest:
            yield rest.removesuffix("\r")[shown:], "\n"

    async def _wait_for_output(self) -> None:
        sys.stdout.flush()
        try:
            await asyncio.wait_for(self._ended.wait(), self._settings.poll_interval_s)
        except TimeoutError:
            return


@contextmanager
def _open_filtered(path: Path, filters: tuple[str, ...]) -> Iterator[IO[str] | None]:
    if not filters:
        yield None
        return
    with path.open("a", buffering=1) as file:
        yield file
