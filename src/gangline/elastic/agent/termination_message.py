"""Writes the report of a failure where the kubelet reads a container's termination message.

The operator then knows the cause without access to logs. Outside a container the file does not
exist and nothing is written.
"""

import contextlib
import os
from pathlib import Path

TERMINATION_LOG = Path("/dev/termination-log")
"""The default of ``terminationMessagePath``."""

MAX_MESSAGE_BYTES = 4096
"""The kubelet reads no more, from the end of the file."""

_HEAD_BYTES = 1024


def write_termination_message(report: str, path: Path = TERMINATION_LOG) -> None:
    """Write a report; of a long one its beginning, which names the cause, and its end."""
    text = report.encode(errors="replace")
    if len(text) > MAX_MESSAGE_BYTES:
        gap = b"\n...\n"
        text = text[:_HEAD_BYTES] + gap + text[_HEAD_BYTES + len(gap) - MAX_MESSAGE_BYTES :]
    # Not created: a file that the kubelet did not mount would be an ordinary file of the machine.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
