"""Logging of components: one line for each message with its fields, as text or as JSON.

The fields are those given with the message (``extra``) and those of the current context, such as
the job that is being reconciled.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO, TypeVar

import click

from gangline.cli.params.command import section
from gangline.cli.params.component_options import env_option
from gangline.kube.log_fields import current_log_fields

F = TypeVar("F", bound=Callable[..., Any])

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


class LogLevelParam(click.ParamType[str]):
    """A log level by its name, or by zap's names and numbers."""

    name = "level"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return one of ``LEVELS``; numbers ask for more than info, so they mean debug."""
        text = str(value).lower()
        text = {"warn": "warning", "panic": "error"}.get(text, text)
        if text.isascii() and text.isdigit():
            return "debug" if int(text) else "info"
        if text not in LEVELS:
            self.fail(f"{value!r} is not one of {', '.join(LEVELS)}", param, ctx)
        return text


class LogFormatParam(click.ParamType[str]):
    """A log format by our name or zap's."""

    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return one of ``FORMATS``; zap's console is text."""
        text = {"console": "text"}.get(str(value).lower(), str(value).lower())
        if text not in FORMATS:
            self.fail(f"{value!r} is not one of {', '.join(FORMATS)}", param, ctx)
        return text


def logging_options(prefix: str) -> Callable[[F], F]:
    """Add ``--log-level`` and ``--log-format``, with the zap flags of upstream operators as
    aliases.
    """

    def add(command: F) -> F:
        form = env_option(
            prefix,
            "--log-format",
            "--zap-encoder",
            "log_format",
            type=LogFormatParam(),
            default="text",
            show_default=True,
            help="text for people, json (an object on each line) for programs.",
        )
        level = env_option(
            prefix,
            "--log-level",
            "--zap-log-level",
            "log_level",
            type=LogLevelParam(),
            default="info",
            show_default=True,
            help="debug, info, warning or error.",
        )
        return section("Logs, metrics and probes", level, form)(command)

    return add


class FieldFormatter(logging.Formatter):
    """Appends the fields to the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line such as ``... INFO placed pods=3 gangs=1``."""
        record.asctime = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        fields = " ".join(f"{name}={_quoted(value)}" for name, value in _fields(record))
        level = record.levelname
        stamp = f"{record.asctime}.{int(record.msecs):03d}"
        line = f"{stamp} {level:7} {record.name}: {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _json_formatter() -> logging.Formatter:
    """Return a formatter that writes one JSON object for each message.

    The keys are those of Kubernetes components: ``ts``, ``level``, ``logger``, ``msg``, the fields,
    ``err`` for an exception. Fields cannot replace the standard keys.
    """
    # Late: the import is slow, and components log text unless they run in a pod.
    from pythonjsonlogger.core import RESERVED_ATTRS
    from pythonjsonlogger.msgspec import MsgspecFormatter

    class KubernetesFormatter(MsgspecFormatter):
        def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
            ts = log_data.pop("ts").isoformat(timespec="milliseconds")
            head = {"ts": ts.replace("+00:00", "Z"), "level": log_data.pop("level").lower()}
            head |= {key: log_data.pop(key) for key in ("logger", "msg")}
            error = {"err": log_data.pop("exc_info")} if "exc_info" in log_data else {}
            return {**head, **current_log_fields(), **log_data, **head, **error}

    standard = {"levelname": "level", "name": "logger", "message": "msg"}
    return KubernetesFormatter(
        list(standard),
        rename_fields=standard,
        timestamp="ts",
        reserved_attrs=[*RESERVED_ATTRS, "taskName", "ts", *standard.values()],
        json_default=str,
    )


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    given = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    yield from {**current_log_fields(), **given}.items()


def _quoted(value: object) -> str:
    text = str(value)
    return repr(text) if not text or " " in text else text


def start_logging(level: str, stream: TextIO | None = None, *, form: str = "text") -> None:
    """Send the logs of this process to ``stream``; to stderr without one."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_json_formatter() if form == "json" else FieldFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
