"""The base class of all messages, and the handshake and general replies."""

import msgspec

PROTOCOL_VERSION = 1
"""The protocol version of this release."""
PROTOCOL_OLDEST = 1
"""The oldest protocol version that this release understands."""


class ProtocolMessage(msgspec.Struct, kw_only=True, omit_defaults=True, tag=True):
    """A message: a map on the wire, whose ``type`` is the tag of its class."""


class Hello(ProtocolMessage):
    """The first message on a connection -> ``Welcome`` or ``Refused``."""

    protocol: int = PROTOCOL_VERSION
    oldest: int = PROTOCOL_OLDEST
    version: str = ""
    """Release of gangline, for display."""
    job: str = ""
    """The sender's job; empty for any."""
    client: str = ""
    """Permanent identifier of the sending process; with a number it identifies a request."""
    node_id: int | None = None
    """The node, if the sender is its agent: the node is considered dead if the connection breaks
    and no other one follows within the grace period. None for worker processes and tools.
    """
    incarnation: str = ""
    """See ``Join``."""


class Welcome(ProtocolMessage):
    """The master accepts the connection."""

    protocol: int
    """Protocol version of this connection."""
    version: str = ""
    master: str = ""
    """Identifier of the master process; a new one means that the master was restarted."""
    job: str = ""
    heartbeat_s: float = 1.0
    """Interval at which agents should send ``Heartbeat``."""
    silence_s: float = 15.0
    """A node that is silent for this time is considered dead."""


class Acknowledged(ProtocolMessage, tag="Done"):
    """The request is done."""


class RequestRefused(ProtocolMessage, tag="Refused"):
    """The request is refused; repeating it does not help unless something changes."""

    reason: str
    """One CamelCase word; stable, for programs: UnknownDataset, UnknownNode, VersionMismatch,
    WrongJob, RendezvousFailed, Superseded, JobOver, BadRequest, TimedOut, TooLarge.
    """
    message: str = ""
    """Explanation, for display."""
