"""The flags of ``gangline brain``."""

import click
import pytest

from gangline.cli.commands.brain import brain_command, build_brain_settings
from gangline.kube.controller.leader_election import LeaderElectionTiming


def flags(*arguments: str) -> dict[str, object]:
    values = brain_command.make_context("brain", ["--database=sqlite://", *arguments]).params
    return {name: value for name, value in values.items() if name not in ("target", "debug")}


def test_timing_of_the_election_is_set_as_that_of_the_operator() -> None:
    given = flags("--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s")
    settings = build_brain_settings(given)
    assert settings.leader_election_timing == LeaderElectionTiming(4, 3.0, 2.0)
    assert build_brain_settings(flags()).leader_election_timing == LeaderElectionTiming()


def test_timing_with_which_two_could_lead_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="two replicas could lead"):
        build_brain_settings(flags("--leader-elect-lease-duration=5s"))
