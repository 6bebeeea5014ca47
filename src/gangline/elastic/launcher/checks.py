"""Which checks are wanted before training; what they need is imported only then."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from gangline.elastic.agent.settings import AgentSettings

if TYPE_CHECKING:
    from gangline.elastic.agent.place import Place
    from gangline.elastic.protocol.seal import Secret

_MANY_NODES = 4
"""From so many on, --auto-config checks the nodes."""


class UnfitError(Exception):
    """The check found this node unfit for training."""


@dataclass(frozen=True, slots=True)
class Checks:
    """What is wanted."""

    enabled: bool
    tells_speed: bool
    """Whether the speed of communication is told, too."""
    exclude_straggler: bool
    """Whether a slow node ends."""

    @classmethod
    def of(cls, flags: argparse.Namespace, max_nodes: int) -> Self:
        """Read the flags, the older ones too."""
        tells_speed = flags.precheck >= 2 or flags.comm_perf_test
        many = flags.auto_config and max_nodes >= _MANY_NODES
        enabled = flags.precheck >= 1 or flags.network_check or tells_speed or many
        return cls(enabled, tells_speed, flags.exclude_straggler)

    async def alone(self, settings: AgentSettings) -> None:
        """Check the only node.

        Raises:
            UnfitError: it should not train.
        """
        if self.enabled:
            await self.now(settings)

    async def now(self, settings: AgentSettings) -> None:
        """Check this node by itself, also where no check was wanted at the start.

        Raises:
            UnfitError: it should not train.
        """
        from gangline.elastic.launcher.check import check_alone, judge  # noqa: PLC0415

        judge(
            await check_alone(settings),
            0,
            exclude_straggler=self.exclude_straggler,
            tells_speed=self.tells_speed,
        )

    async def together(self, settings: AgentSettings, place: "Place", secret: "Secret") -> None:
        """Check this node with the others.

        Raises:
            UnfitError: it should not train.
            MeetingError: the master cannot be asked.
        """
        if self.enabled:
            from gangline.elastic.launcher.check import check_together, judge  # noqa: PLC0415

            judge(
                await check_together(settings, place, secret, all_together=self.tells_speed),
                place.node_id,
                exclude_straggler=self.exclude_straggler,
                tells_speed=self.tells_speed,
            )
