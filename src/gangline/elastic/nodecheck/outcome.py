"""What a test of a group of nodes came to, and what is concluded from all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

COMPUTE, COLLECTIVE = "compute", "collective"
"""What is timed."""

Group = tuple[int, ...]
"""Nodes that test with each other."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one node says about one round."""

    passed: bool
    local: bool = False
    """The failed test took place within this node: no partner can be the cause."""
    compute_s: float = 0.0
    """The matrix multiplications."""
    collective_s: float = 0.0
    """One collective operation, on average."""
    bandwidth: float = 0.0
    """Bytes each second, as the algorithm counts them."""
    device: str = ""
    test: str = ""
    """The test that failed."""
    message: str = ""
    collective_device: str = ""
    """The slowest for the collective; ``device`` is so for the matrices."""

    def seconds_of(self, test: str) -> float:
        """Return the time that is said for a test."""
        return self.collective_s if test == COLLECTIVE else self.compute_s

    def device_of(self, test: str) -> str:
        """Name the device that took the time which is said for a test."""
        return self.collective_device if test == COLLECTIVE else self.device


LOST = Outcome(passed=False, local=True, test="presence", message="the node did not report in time")
"""What is held of a node that said nothing. That those who tested with it failed proves nothing."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round that is over."""

    groups: tuple[Group, ...]
    outcomes: Mapping[int, Outcome]
    """By node; a node of a group that is missing here is taken as `LOST`."""

    def outcome(self, node: int) -> Outcome:
        """Return what a node said."""
        return self.outcomes.get(node, LOST)

    def passed(self, group: Group) -> bool:
        """Whether all nodes of a group say so."""
        return all(self.outcome(node).passed for node in group)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a node."""

    node: int
    test: str
    device: str = ""
    value: float = 0.0
    """Seconds, or how many times it failed."""
    threshold: float = 0.0
    """What the value should have stayed under."""
    message: str = ""

    def __str__(self) -> str:
        where = f" on {self.device}" if self.device else ""
        said = f": {self.message}" if self.message else ""
        return (
            f"node {self.node} failed {self.test}{where} "
            f"({self.value:.4g}, limit {self.threshold:.4g}){said}"
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a check."""

    faulty: Mapping[int, Finding] = field(default_factory=dict)
    """Nodes that are proved faulty."""
    stragglers: Mapping[int, Finding] = field(default_factory=dict)
    """Nodes that pass, but slowly."""
    undecided: tuple[int, ...] = ()
    """Nodes that failed with others that are not proved healthy: either may be the cause."""
    rounds: int = 0

    def passed(self, node: int, *, exclude_stragglers: bool = False) -> bool:
        """Whether a node may train."""
        slow = exclude_stragglers and node in self.stragglers
        return node not in self.faulty and node not in self.undecided and not slow
