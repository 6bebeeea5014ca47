"""What the exit status of ``gangline`` means. Scripts depend on it: the numbers never change."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit status of a command."""

    DONE = 0
    UNEXPECTED = 1
    """Anything without a number of its own: a refusal by the server, a bug."""
    USAGE = 2
    """The command line, a file or the configuration is wrong; nothing was changed."""
    NOT_FOUND = 3
    EXISTS = 4
    UNREACHABLE = 5
    """No cluster answers, or none is configured."""
    JOB_FAILED = 6
    INTERRUPTED = 130
    """Ended by Ctrl-C, as shells count it (128 + SIGINT)."""
