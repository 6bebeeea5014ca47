"""What can go wrong between an agent and its master.

ProtocolError
├── MasterUnreachableError      no answer in the time given
└── RequestRefusedError         an answer, and it is no
"""

from gangline.elastic.protocol.messages import Refused


class ProtocolError(Exception):
    """The master could not be asked, or said no."""


class MasterUnreachableError(ProtocolError):
    """No answer in the time given."""

    def __init__(self, address: str, waited_s: float, trouble: str) -> None:
        super().__init__(f"no answer from the master at {address} for {waited_s:.0f} s: {trouble}")
        self.address = address
        self.trouble = trouble
        """What was wrong the last time that it was tried."""


class RequestRefusedError(ProtocolError):
    """The master said no."""

    def __init__(self, refused: Refused) -> None:
        said = f": {refused.message}" if refused.message else ""
        super().__init__(f"the master refused ({refused.reason}){said}")
        self.reason = refused.reason
        """One CamelCase word, see ``messages.Refused``."""
        self.message = refused.message
