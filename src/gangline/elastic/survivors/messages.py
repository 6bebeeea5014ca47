"""What surviving workers, their agents and the coordinator send each other (see ``coordinator``).

Workers and agents send a `Message`; the coordinator answers all of them with an `Order`.
"""

from typing import Final

import msgspec

FORM_S: Final = 60.0
"""Time in which members must end what they compute, and connect with each other."""
CONNECT_S: Final = 20.0
"""Time in which members connect when all have ended what they compute."""
RESTORE_S: Final = 300.0
"""Time in which state must be copied to those that are behind."""
NO_STATE: Final = -1
"""The step of a member whose state must not be used."""


class MemberHello(msgspec.Struct, frozen=True, tag=True):
    """A worker waits for a group. ``handle`` is its address, where the library needs it.

    It is sent again by a member whose address has changed, so that it cannot form this group.
    """

    slot: int
    handle: str = ""


class Alive(msgspec.Struct, frozen=True, tag=True):
    """A worker runs as long as this connection is open; the agent of its node checks it then."""

    slot: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A member has trained in its group, and could be continued by a successor from now on."""

    slot: int


class Warm(msgspec.Struct, frozen=True, tag=True):
    """A successor waits for a seat."""

    slot: int
    handle: str = ""


class Heard(msgspec.Struct, frozen=True, tag=True):
    """A member knows of an epoch, and joins it when it has ended what it computes."""

    slot: int
    epoch: int
    has_joined: bool = False
    """True in a second message: from now on it waits for the others."""


class Connected(msgspec.Struct, frozen=True, tag=True):
    """A member is connected with the others of an epoch; states are restored next."""

    slot: int
    epoch: int
    handle: str = ""
    """Its address for the next epoch."""


class Formed(msgspec.Struct, frozen=True, tag=True):
    """A member of an epoch has the state of ``step`` finished steps."""

    slot: int
    epoch: int
    step: int
    discarded: int = 0
    """Steps whose work this member has discarded."""


class Finished(msgspec.Struct, frozen=True, tag=True):
    """A member has done all steps, and waits for `Fallback`: it ends when no group follows."""

    slot: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """A worker cannot continue."""

    slot: int
    reason: str


class Lost(msgspec.Struct, frozen=True, tag=True):
    """An agent has seen the end of a process, and another one may continue for it."""

    slot: int
    cause: str = ""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """An agent has seen the end of a process whose place no other can take."""

    slot: int


class Replace(msgspec.Struct, frozen=True, tag=True):
    """A person, or a hang detector, asks for another process in place of a rank."""

    rank: int
    reason: str
    is_urgent: bool = False
    """True if the rank is of no use any more: it is not waited for its successor."""
    epoch: int = 0
    """The group whose rank is meant; 0 for the present one."""


class Arrived(msgspec.Struct, frozen=True, tag=True):
    """The agent of another node follows the orders."""

    agent: str
    node: int | None = None
    """Its number; None for a node that has joined later, and waits for its `Place`."""


class LostNode(msgspec.Struct, frozen=True, tag=True):
    """The agent of a node is gone, and its workers with it."""

    node: int


Message = (
    MemberHello
    | Alive
    | Ready
    | Warm
    | Heard
    | Connected
    | Formed
    | Finished
    | Refused
    | Lost
    | Ended
    | Replace
    | Arrived
    | LostNode
)


class Form(msgspec.Struct, frozen=True, tag=True):
    """Form the group of an epoch."""

    epoch: int
    members: list[int]
    """Slots in the order of their ranks."""
    seats: list[int]
    """The seat of each member."""
    handles: list[str]
    """The address of each member."""
    leaves: list[int] = []
    """Slots that ended since the epoch before."""


class Hold(msgspec.Struct, frozen=True, tag=True):
    """A member was lost, and the others wait for a successor: the next `Form` takes a while."""

    epoch: int
    """The epoch that has ended."""


class Train(msgspec.Struct, frozen=True, tag=True):
    """All members of an epoch have the same state. Until now the coordinator had limits of time."""

    epoch: int


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start a successor on a node."""

    slot: int
    node: int
    seat: int | None = None
    """The seat that it is for; None for any seat of the node."""


class Place(msgspec.Struct, frozen=True, tag=True):
    """The number of a node that has joined later."""

    agent: str
    node: int


class Look(msgspec.Struct, frozen=True, tag=True):
    """See whether a process was killed: Linux tells its parent later than it ends a connection."""

    slot: int


class KillRank(msgspec.Struct, frozen=True, tag=True):
    """End a process that is replaced."""

    slot: int
    reason: str


class Fallback(msgspec.Struct, frozen=True, tag=True):
    """Restart all workers. ``blamed`` slots are killed first.

    ``is_end``: the training ends by itself, so that nothing is left to restart.
    """

    reason: str
    blamed: list[int] = []
    is_end: bool = False


Order = Form | Hold | Train | Start | Place | Look | KillRank | Fallback
