"""Turns exceptions into messages and exit statuses.

Commands raise ``CommandError`` for their own findings and let errors of the API client, of the
configuration and of the SDK pass. ``to_command_error`` turns each into a message, a hint and an
exit status; ``--debug`` shows the traceback as well. Scripts depend on exit statuses: the numbers
never change.
"""

import sys
from enum import IntEnum

import click


class ExitCode(IntEnum):
    DONE = 0
    UNEXPECTED = 1
    """Any failure without its own number: a refusal by the server, a defect."""
    USAGE = 2
    """The command line, a file or the configuration is wrong; nothing was changed."""
    NOT_FOUND = 3
    EXISTS = 4
    UNREACHABLE = 5
    """No cluster answers, or none is configured."""
    JOB_FAILED = 6
    INTERRUPTED = 130
    """Ended by Ctrl-C, with the number that shells use (128 + SIGINT)."""


class CommandError(Exception):
    """The command failed: a message, a hint about the next step, and the exit status."""

    def __init__(
        self, message: str, *, hint: str = "", code: ExitCode = ExitCode.UNEXPECTED
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


def to_command_error(error: BaseException) -> CommandError:
    """Return the message, hint and exit status for ``error``."""
    match error:
        case CommandError():
            return error
        case KeyboardInterrupt() | click.Abort():
            return CommandError("interrupted", code=ExitCode.INTERRUPTED)
        case click.UsageError():
            hint = f"See '{error.ctx.command_path} --help'." if error.ctx else ""
            return CommandError(error.format_message(), hint=hint, code=ExitCode.USAGE)
        case click.ClickException():
            return CommandError(error.format_message(), code=ExitCode.USAGE)
        case BaseExceptionGroup() if len(error.exceptions) == 1:
            return to_command_error(error.exceptions[0])
        case ModuleNotFoundError():
            return _missing_package(error)
    return (
        _kubernetes_error(error)
        or _job_error(error)
        or _embedded_cluster_error(error)
        or _other_error(error)
    )


def _missing_package(error: ModuleNotFoundError) -> CommandError:
    # Late: the metadata of the distribution are read only here.
    from gangline.extras import explain_missing

    message, command = explain_missing(error)
    return CommandError(message, hint=f"Install it with: {command}") if message else _defect(error)


def _other_error(error: BaseException) -> CommandError:
    """Handle errors that neither the command line nor a cluster has caused."""
    if isinstance(error, OSError):
        text = error.strerror or str(error)
        return CommandError(f"{error.filename}: {text}" if error.filename else text)
    return _defect(error)


def _defect(error: BaseException) -> CommandError:
    return CommandError(
        f"unexpected {type(error).__name__}: {error}",
        hint="This is a defect of gangline; run the command again with --debug for a traceback.",
    )


def _kubernetes_error(error: BaseException) -> CommandError | None:
    """Handle errors of the API client and of its configuration; None for other errors."""
    # Late: --help and mistyped commands must not import the client's dependencies.
    from gangline.kube import errors as kube

    match error:
        case kube.Unreachable():
            hint = "Start a cluster on this machine with 'gangline up', or check --kubeconfig."
            return CommandError(str(error), hint=hint, code=ExitCode.UNREACHABLE)
        case kube.ConfigError():
            hint = "'gangline up' starts a cluster on this machine and writes its configuration."
            if " --kubeconfig /" in str(error):
                hint = ""  # it lists the clusters that run
            return CommandError(str(error), hint=hint, code=ExitCode.UNREACHABLE)
        case kube.NotFound():
            return CommandError(str(error), hint=_not_found_hint(error), code=ExitCode.NOT_FOUND)
        case kube.AlreadyExists():
            hint = "Choose another name, or delete it first with 'gangline delete NAME'."
            return CommandError(str(error), hint=hint, code=ExitCode.EXISTS)
        case kube.Invalid():
            return CommandError(_format_causes(error), code=ExitCode.USAGE)
        case kube.Unauthorized():
            hint = "The credentials of the kubeconfig are missing, wrong or expired."
            return CommandError(str(error), hint=hint)
        case kube.Forbidden():
            hint = "Ask the cluster's administrator; 'kubectl auth can-i' shows your rights."
            return CommandError(str(error), hint=hint)
        case kube.ApiError():
            return CommandError(str(error))
    return None


def _job_error(error: BaseException) -> CommandError | None:
    """Handle errors of the SDK about jobs; None for other errors."""
    if "gangline.sdk.client" not in sys.modules:
        return None  # nothing has raised them; its dependencies may be missing
    from gangline.sdk.client import (
        AmbiguousJob,
        JobError,
        NoSuchJob,
        NoSuchNamespace,
        UnknownKind,
    )

    match error:
        case NoSuchNamespace():
            hint = "'kubectl get namespaces' lists the namespaces; -n selects one."
            return CommandError(str(error), hint=hint, code=ExitCode.NOT_FOUND)
        case NoSuchJob():
            return CommandError(str(error), hint=_LIST_HINT, code=ExitCode.NOT_FOUND)
        case AmbiguousJob() | UnknownKind():
            return CommandError(str(error), code=ExitCode.USAGE)
        case JobError():
            return CommandError(str(error))
    return None


def _embedded_cluster_error(error: BaseException) -> CommandError | None:
    """Handle errors of the cluster on this machine; None for other errors."""
    from gangline.local.directory import ClusterAlreadyRunning, ClusterError, ClusterNotRunning

    match error:
        case ClusterAlreadyRunning():
            return CommandError(str(error), code=ExitCode.EXISTS)
        case ClusterNotRunning():
            return CommandError(str(error), code=ExitCode.NOT_FOUND)
        case ClusterError():
            return CommandError(str(error))
    return None


_LIST_HINT = "'gangline list -A' shows the jobs of all namespaces."


def _not_found_hint(error: BaseException) -> str:
    """Return the command that helps if an object does not exist."""
    details = getattr(getattr(error, "status", None), "details", None)
    if details is not None and details.kind == "namespaces":
        return f"Create the namespace first: 'kubectl create namespace {details.name}'."
    if details is not None and details.kind == "nodes":
        return "'gangline top node' shows the nodes."
    if details is not None and details.kind == "queues":
        return "'gangline queue list' shows the queues."
    return _LIST_HINT


def _format_causes(error: BaseException) -> str:
    """List all causes in the server's answer to an invalid object, one on each line."""
    details = getattr(getattr(error, "status", None), "details", None)
    if details is None or len(details.causes) < 2:
        return str(error)
    head = f"{details.kind} {details.name!r} has {len(details.causes)} errors:"
    return "\n".join([head, *(f"  {cause.field}: {cause.message}" for cause in details.causes)])
