"""Errors of initializers."""


class InitializerError(Exception):
    """The fetch cannot succeed: repeating it with the same settings has the same result."""

    def __init__(self, field: str, message: str, remedy: str = "") -> None:
        super().__init__(f"{field}: {message}" + (f"; {remedy}" if remedy else ""))
        self.field = field
        """The variable, or the field of the TrainJob, that is wrong."""


class TransientError(Exception):
    """The fetch failed for now: the network, or a server that is overloaded."""
