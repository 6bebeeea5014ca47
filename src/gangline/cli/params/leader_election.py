"""Flags for the timing of a leader election, the same for all components."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.params.env_options import Duration

if TYPE_CHECKING:
    from gangline.kube.controller.leader_election import LeaderElectionTiming

_TIMING = ("lease-duration", "renew-deadline", "retry-period")

Decorator = Callable[[Any], Any]


def election_timing_options(option: Callable[..., Decorator]) -> tuple[Decorator, ...]:
    """Return the options; ``option`` makes one of the component."""
    return (
        option(
            "--leader-elect-lease-duration",
            "lease_duration",
            type=Duration(),
            default="15s",
            show_default=True,
            help="Duration after which another replica may take a lease that was not renewed.",
        ),
        option(
            "--leader-elect-renew-deadline",
            "renew_deadline",
            type=Duration(),
            default="10s",
            show_default=True,
            help="Duration after which a leader that cannot renew stops.",
        ),
        option(
            "--leader-elect-retry-period",
            "retry_period",
            type=Duration(),
            default="2s",
            show_default=True,
            help="Interval between attempts to acquire or renew the lease.",
        ),
    )


def take_election_timing(flags: dict[str, Any]) -> "LeaderElectionTiming":
    """Remove the values of the options from the flags, and return them.

    Raises:
        click.BadParameter: with these values two replicas could lead.
    """
    from gangline.kube.controller.leader_election import LeaderElectionTiming

    lease_duration, renew_deadline, retry_period = (
        flags.pop(name.replace("-", "_")) for name in _TIMING
    )
    try:
        return LeaderElectionTiming(round(lease_duration), renew_deadline, retry_period)
    except ValueError as error:
        names = (f"'--leader-elect-{name}'" for name in _TIMING)
        raise click.BadParameter(str(error), param_hint=" / ".join(names)) from error
