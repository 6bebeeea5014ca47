"""Errors between an agent and its master.

ProtocolError
├── MasterUnreachableError      no reply within the timeout
└── RequestRefusedError         the master refused the request
"""

from gangline.elastic.protocol.messages import RequestRefused


class ProtocolError(Exception):
    """The master could not be reached, or refused."""


class MasterUnreachableError(ProtocolError):
    """The master did not reply within the timeout."""

    def __init__(self, address: str, waited_s: float, last_error: str) -> None:
        super().__init__(
            f"no reply from the master at {address} for {waited_s:.0f} s: {last_error}"
        )
        self.address = address
        self.last_error = last_error
        """The error of the last attempt."""


class RequestRefusedError(ProtocolError):
    """The master refused the request."""

    def __init__(self, refused: RequestRefused) -> None:
        details = f": {refused.message}" if refused.message else ""
        super().__init__(f"the master refused ({refused.reason}){details}")
        self.reason = refused.reason
        """One CamelCase word; see the refusal message."""
        self.message = refused.message
