"""Fetches the files of a source: in parallel, repeated after errors, checked, and marked."""

import logging
import random
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

import msgspec

from gangline.initializer.errors import InitializerError, TransientError
from gangline.initializer.files import (
    SourceFile,
    format_bytes,
    is_complete,
    is_fetched,
    make_durable,
    partial_folder,
    record_fetched,
)
from gangline.initializer.mark import locked, read_mark, remove_mark, write_mark
from gangline.initializer.settings import OUTPUT_DIR, InitializerSettings
from gangline.initializer.source import Listing, Source

log = logging.getLogger(__name__)

WORKERS = 8
PROGRESS_EVERY_S = 15.0
_NO_SPACE = 28  # ENOSPC

T = TypeVar("T")


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often a request is repeated, and after how long."""

    attempts: int = 6
    first_delay_s: float = 1.0
    factor: float = 2.0
    """Each delay is this times the one before; up to half of it is left out by chance."""


class Fetched(msgspec.Struct, frozen=True):
    """The result of a fetch."""

    files: int
    bytes: int
    was_complete: bool = False
    """True if an earlier run had fetched everything."""


def fetch_source(
    settings: InitializerSettings,
    open_source: Callable[[], Source],
    retry: RetryPolicy | None = None,
) -> Fetched:
    """Fetch all files of a source into the output folder.

    Args:
        settings: what is fetched.
        open_source: makes the client of the source; not called if everything is there.
        retry: how requests are repeated.

    Raises:
        InitializerError: a setting is wrong, or the folder cannot be written.
        TransientError: the source did not answer, also after the last repetition.
    """
    try:
        settings.output.mkdir(parents=True, exist_ok=True)
        with locked(settings.output, lambda: log.info("another pod fetches: waiting for its end")):
            if mark := read_mark(settings):
                size = sum(file.size for file in mark.files)
                return Fetched(len(mark.files), size, was_complete=True)
            return _Fetch(settings, retry or RetryPolicy()).run(open_source)
    except OSError as error:
        place = error.filename or settings.output
        remedy = "mount a volume there that the container may write"
        if error.errno == _NO_SPACE:
            remedy = "request more storage for the claim"
        raise InitializerError(OUTPUT_DIR, f"{place}: {error.strerror or error}", remedy) from error


class _Fetch:
    """One run: its progress, and what it has fetched."""

    def __init__(self, settings: InitializerSettings, retry: RetryPolicy) -> None:
        self._settings = settings
        self._retry = retry
        self._output = settings.output
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._done_bytes = 0
        self._reported = time.monotonic()

    def run(self, open_source: Callable[[], Source]) -> Fetched:
        remove_mark(self._settings)
        source = self._repeat(open_source, "the source")
        listing = self._repeat(source.list_files, "the list of files")
        if not listing.files:
            problem = f"{self._settings.uri!r} has no files that IGNORE_PATTERNS leaves"
            raise InitializerError(self._settings.uri_field, problem)
        total = sum(file.size for file in listing.files)
        missing = [file for file in listing.files if not is_fetched(self._output, file)]
        left = sum(file.size for file in missing)
        log.info(
            "%s: %d files, %s; %s to fetch",
            self._settings.uri,
            len(listing.files),
            format_bytes(total),
            format_bytes(left),
        )
        self._check_space(left)
        self._fetch_all(source, listing, missing, left)
        self._finish(listing)
        return Fetched(len(listing.files), total)

    def _check_space(self, left: int) -> None:
        started = partial_folder(self._output)
        partial = sum(path.stat().st_size for path in started.glob("*")) if left else 0
        free = shutil.disk_usage(self._output).free
        if left - partial > free:
            problem = f"{format_bytes(left)} do not fit: {self._output} has {format_bytes(free)}"
            raise InitializerError(OUTPUT_DIR, problem, "request more storage for the claim")

    def _fetch_all(
        self, source: Source, listing: Listing, missing: list[SourceFile], left: int
    ) -> None:
        # Large files first: a last file that is large would be fetched alone.
        ordered = sorted(missing, key=lambda file: -file.size)
        pool = ThreadPoolExecutor(WORKERS)
        tasks = [pool.submit(self._fetch, source, listing, file, left) for file in ordered]
        done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
        self._stopped.set()
        # Not waited for: after an error the process ends, and the next one continues these files.
        pool.shutdown(wait=False, cancel_futures=True)
        for task in done:
            task.result()

    def _fetch(self, source: Source, listing: Listing, file: SourceFile, left: int) -> None:
        if self._stopped.is_set():
            return

        def attempt() -> None:
            source.fetch(file, listing, self._output)
            if not is_complete(self._output / file.path, file):
                (self._output / file.path).unlink(missing_ok=True)
                raise TransientError(f"{file.path}: the received bytes are not those of the source")

        self._repeat(attempt, file.path)
        make_durable(self._output / file.path)
        record_fetched(self._output, file)
        with self._lock:
            self._done_bytes += file.size
            if time.monotonic() - self._reported >= PROGRESS_EVERY_S:
                self._reported = time.monotonic()
                log.info("%s of %s", format_bytes(self._done_bytes), format_bytes(left))

    def _finish(self, listing: Listing) -> None:
        shutil.rmtree(partial_folder(self._output), ignore_errors=True)
        folders = {Path(self._output, file.path).parent for file in listing.files}
        for folder in folders:
            make_durable(folder)
        write_mark(self._settings, listing.revision, listing.files)

    def _repeat(self, call: Callable[[], T], name: str) -> T:
        """Call until it succeeds, at most as often as the policy allows."""
        delay = self._retry.first_delay_s
        for attempt in range(1, self._retry.attempts + 1):
            try:
                return call()
            except TransientError as error:
                if attempt == self._retry.attempts:
                    raise
                log.warning("%s: %s; attempt %d follows", name, error, attempt + 1)
                if self._stopped.wait(delay * random.uniform(0.5, 1)):
                    raise
            delay *= self._retry.factor
        raise AssertionError("unreachable: the last attempt returns or raises")
