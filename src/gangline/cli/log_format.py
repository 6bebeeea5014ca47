"""How components log: one line for each thing that happened, with its fields as key=value."""

import logging
import sys
from typing import TextIO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
LEVELS = ("debug", "info", "warning", "error")


class FieldFormatter(logging.Formatter):
    """Puts the fields given as ``extra`` behind the message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a line such as ``... INFO placed pods=3 gangs=1``."""
        record.asctime = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        fields = " ".join(
            f"{name}={_quoted(value)}"
            for name, value in vars(record).items()
            if name not in _STANDARD
        )
        level = record.levelname
        stamp = f"{record.asctime}.{int(record.msecs):03d}"
        line = f"{stamp} {level:7} {record.name}: {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _quoted(value: object) -> str:
    text = str(value)
    return repr(text) if not text or " " in text else text


def start_logging(level: str, stream: TextIO | None = None) -> None:
    """Send the logs of this process to ``stream``, or to stderr."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(FieldFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
