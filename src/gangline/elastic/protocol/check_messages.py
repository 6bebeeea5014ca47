"""Messages of the node check: who tests with whom, what came out, who is to blame."""

from typing import Final

import msgspec

from gangline.elastic.protocol.kinds import Message

PARTNER_LOST: Final = "PartnerLost"
"""Why a node need not go on with a test: somebody of its group is gone."""


class CheckWanted(Message):
    """A node comes to the check -> ``CheckGroup``, or ``CheckVerdict``. A long poll.

    ``Refused`` TimedOut after ``wait_s``: ask again. The parameters are in each message, so that a
    master that lost everything learns them again.
    """

    node_id: int
    incarnation: str = ""
    check: int = 1
    """Counts the checks that this agent process takes part in."""
    node_rank: int = -1
    host: str = ""
    store_port: int = 0
    """A port that is free there, for the group's store should it be the first of its group."""
    nodes: int = 1
    """How many nodes the check waits for (its maximum)."""
    min_nodes: int = 1
    last_call_s: float = 5.0
    wait_s: float = 5.0
    """Well below the time after which a silent node is held dead."""
    straggler_ratio: float = 0.0
    """Slower than this many times the median is a straggler; 0: the default."""
    straggler_s: float = 0.0
    """Slower than this is one anyway; 0: no such limit."""
    all_together: bool = False
    """Test the collective over all healthy nodes at the end, for its speed."""
    testing: int = -1
    """The round in which it tests already: it is told when that is in vain, by ``Refused``
    PartnerLost, and reports then that the test failed."""


class CheckMember(msgspec.Struct, frozen=True, array_like=True):
    """One node of a group. The order of fields is the wire format: add only at the end."""

    node_id: int
    rank: int
    host: str = ""


class CheckGroup(Message):
    """Test with these; then send ``CheckResult`` for this round."""

    round: int
    members: tuple[CheckMember, ...]
    store_host: str = ""
    store_port: int = 0


class CheckResult(Message):
    """What a test came to -> the next ``CheckGroup``, or ``CheckVerdict``. A long poll."""

    node_id: int
    round: int
    passed: bool
    local: bool = False
    """The failed test took place within the node: no partner can be the cause."""
    incarnation: str = ""
    check: int = 1
    compute_s: float = 0.0
    """The matrix multiplications."""
    collective_s: float = 0.0
    """The collective operations."""
    bandwidth: float = 0.0
    """Bytes each second of the collective, as its algorithm counts them."""
    device: str = ""
    """Where the test failed, or the slowest for matrices."""
    test: str = ""
    """The test that failed."""
    message: str = ""
    collective_device: str = ""
    """The slowest for the collective."""
    store_port: int = 0
    """A fresh port for the next round."""
    wait_s: float = 5.0


class CheckVerdict(Message):
    """The check is over."""

    passed: bool
    """For the node that asks."""
    faulty: dict[int, str] = {}
    """node id -> what is wrong: test, device, value, threshold."""
    stragglers: dict[int, str] = {}
    undecided: tuple[int, ...] = ()
    """Nodes that could not be cleared and not be blamed."""
