"""Runs an initializer: from variables to files, with messages for the pod's status."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import NoReturn

from gangline.api.trainer.storage_uri import HF, S3
from gangline.initializer.download import RetryPolicy, fetch_source
from gangline.initializer.errors import InitializerError, TransientError
from gangline.initializer.files import format_bytes
from gangline.initializer.settings import InitializerSettings, read_settings
from gangline.initializer.source import Source
from gangline.initializer.sources.folder import FolderSource

log = logging.getLogger(__name__)

EXTRA = "initializer"
SUCCEEDED, FAILED, REFUSED = 0, 1, 2
"""Exit statuses. ``REFUSED``: a repetition fails too, because a setting is wrong."""


def run_initializer(
    step: str,
    environment: Mapping[str, str],
    report: Callable[[str], None],
    retry: RetryPolicy | None = None,
) -> int:
    """Fetch what the variables of a step name; return the exit status.

    Args:
        step: ``dataset`` or ``model``.
        environment: the variables of the process.
        report: called with the reason of a failure.
        retry: how requests are repeated.
    """
    started = time.monotonic()
    try:
        settings = read_settings(step, environment)
        result = fetch_source(settings, lambda: _open_source(settings), retry)
    except (InitializerError, TransientError) as error:
        log.error("%s", error)
        report(str(error))
        return REFUSED if isinstance(error, InitializerError) else FAILED
    if result.was_complete:
        log.info("%s is complete already: %d files", settings.output, result.files)
        return SUCCEEDED
    log.info(
        "%s: %d files, %s, after %.1f s",
        settings.output,
        result.files,
        format_bytes(result.bytes),
        time.monotonic() - started,
    )
    return SUCCEEDED


def main(step: str, report: Callable[[str], None]) -> NoReturn:
    """Run as the first process of a container, which has no default action for SIGTERM."""
    signal.signal(signal.SIGTERM, _terminate)
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    for noisy in ("httpx", "httpx2", "botocore", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    status = run_initializer(step, os.environ, report)
    logging.shutdown()
    # Threads may wait for the network: what they have fetched is used by the next run.
    os._exit(status)


def _open_source(settings: InitializerSettings) -> Source:
    try:
        match settings.source.scheme:
            case scheme if scheme == HF:
                from gangline.initializer.sources.hugging_face import (
                    HuggingFaceSource,
                )

                return HuggingFaceSource(settings)
            case scheme if scheme == S3:
                from gangline.initializer.sources.s3 import S3Source

                return S3Source(settings)
    except ModuleNotFoundError as error:
        problem = f"{settings.uri!r} needs the package {error.name!r}"
        remedy = f"install gangline[{EXTRA}], or use Gangline's image"
        raise InitializerError(settings.uri_field, problem, remedy) from error
    return FolderSource(settings)


def _terminate(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
