"""Options of the embedded API server's audit log."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gangline.local.apiserver.audit.audit_log import AuditSettings

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--audit-log",
        type=click.Path(path_type=Path, dir_okay=False, resolve_path=True),
        help="File of audit events: who requested what from the API server.",
    ),
    click.option(
        "--audit-log-maxsize",
        type=click.IntRange(1),
        default=100,
        show_default=True,
        help="Size in MiB at which the file of --audit-log is rotated.",
    ),
    click.option(
        "--audit-log-maxbackup",
        type=click.IntRange(0),
        default=10,
        show_default=True,
        help="Number of rotated files of --audit-log to keep.",
    ),
)


def audit_options(command: F) -> F:
    """Add the options. A relative path is resolved: the cluster may run in the background."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def audit_settings(
    audit_log: Path | None, audit_log_maxsize: int, audit_log_maxbackup: int
) -> "AuditSettings | None":
    """Return the settings of the given options; None without a file."""
    from gangline.local.apiserver.audit.audit_log import AuditSettings

    if audit_log is None:
        return None
    return AuditSettings(audit_log, audit_log_maxsize, audit_log_maxbackup)
