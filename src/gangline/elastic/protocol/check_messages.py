"""Messages of the node check: groups of nodes, test results, and the verdict."""

from typing import Final

import msgspec

from gangline.elastic.protocol.base_messages import ProtocolMessage

PARTNER_LOST: Final = "PartnerLost"
"""Reason why a node should stop a test: another node of its group is gone."""


class CheckRequest(ProtocolMessage, tag="CheckWanted"):
    """A node takes part in the check -> ``CheckGroup``, or ``CheckVerdict``. A long poll.

    ``Refused`` TimedOut after ``wait_s``: ask again. Each message has the parameters, so that a
    master without its state learns them again.
    """

    node_id: int
    incarnation: str = ""
    check: int = 1
    """Number of this check of this agent process."""
    node_rank: int = -1
    host: str = ""
    store_port: int = 0
    """A free port on its host, for the store if it becomes the first node of its group."""
    nodes: int = 1
    """The number of nodes that the check waits for (the maximum)."""
    min_nodes: int = 1
    last_call_s: float = 5.0
    wait_s: float = 5.0
    """Must be well below the time after which a silent node is considered dead."""
    straggler_ratio: float = 0.0
    """A node that takes longer than this multiple of the median is a straggler; 0 for the default.
    """
    straggler_s: float = 0.0
    """A node that takes longer than this is a straggler as well; 0 for no such limit."""
    all_together: bool = False
    """Test the collective over all healthy nodes at the end, for its speed."""
    testing: int = -1
    """The round that it tests already. If that test is pointless, the reply is ``Refused``
    PartnerLost, and the node reports a failed test.
    """


class CheckMember(msgspec.Struct, frozen=True, array_like=True):
    """One node of a group. The order of fields is the wire format: add only at the end."""

    node_id: int
    rank: int
    host: str = ""


class CheckGroup(ProtocolMessage):
    """Test with these nodes; then send ``CheckResult`` for this round."""

    round: int
    members: tuple[CheckMember, ...]
    store_host: str = ""
    store_port: int = 0


class CheckResult(ProtocolMessage):
    """The result of a test -> the next ``CheckGroup``, or ``CheckVerdict``. A long poll."""

    node_id: int
    round: int
    passed: bool
    local: bool = False
    """The failed test ran within the node, so no partner can be the cause."""
    incarnation: str = ""
    check: int = 1
    compute_s: float = 0.0
    """Seconds for the matrix multiplications."""
    collective_s: float = 0.0
    """Seconds for the collective operations."""
    bandwidth: float = 0.0
    """Bytes per second of the collective, as its algorithm counts them."""
    device: str = ""
    """The device that failed, or the slowest one for matrices."""
    test: str = ""
    """The test that failed."""
    message: str = ""
    collective_device: str = ""
    """The slowest device for the collective."""
    store_port: int = 0
    """A free port for the next round."""
    wait_s: float = 5.0


class CheckVerdict(ProtocolMessage):
    """The check is over."""

    passed: bool
    """For the node that asks."""
    faulty: dict[int, str] = {}
    """What is wrong, by node id: test, device, value, threshold."""
    stragglers: dict[int, str] = {}
    undecided: tuple[int, ...] = ()
    """Nodes that could be neither cleared nor blamed."""
