"""Exit statuses of ``gangline``. Scripts depend on the numbers: they never change."""

from enum import IntEnum


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
