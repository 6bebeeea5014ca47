"""The common form of all messages, and the few that belong to no subject."""

import msgspec

PROTOCOL_VERSION = 1
"""What this release speaks."""
PROTOCOL_OLDEST = 1
"""The oldest that it still understands."""


class Message(msgspec.Struct, kw_only=True, omit_defaults=True, tag=True):
    """A message: a map on the wire whose ``type`` is the name of its class."""


class Hello(Message):
    """The first message on a connection -> ``Welcome`` or ``Refused``."""

    protocol: int = PROTOCOL_VERSION
    oldest: int = PROTOCOL_OLDEST
    version: str = ""
    """Of gangline, for people."""
    job: str = ""
    """The job that the sender belongs to; empty: any."""
    client: str = ""
    """Names the sending process for ever: repeated requests are known by it and their number."""
    node_id: int | None = None
    """The node whose agent this is: when the connection breaks and none comes in its place soon,
    the node is held dead. None for worker processes, tools and people."""
    incarnation: str = ""
    """As in ``Join``."""


class Welcome(Message):
    """The master takes the connection."""

    protocol: int
    """What both sides speak from now on."""
    version: str = ""
    master: str = ""
    """Names the master process: another one than before means that the master was restarted."""
    job: str = ""
    heartbeat_s: float = 1.0
    """How often agents should send ``Heartbeat``."""
    silence_s: float = 15.0
    """A node that is not heard of for so long is held dead."""


class Done(Message):
    """It is done; there is nothing more to say."""


class Refused(Message):
    """It is not done, and sending it again will not help unless something changes."""

    reason: str
    """One CamelCase word; stable, for programs: UnknownDataset, UnknownNode, VersionMismatch,
    WrongJob, RendezvousFailed, Superseded, JobOver, BadRequest, TimedOut, TooLarge."""
    message: str = ""
    """For people."""
