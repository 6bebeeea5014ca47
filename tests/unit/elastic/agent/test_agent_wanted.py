"""An order to leave a round counts whether it comes before the round's world or after it."""

from gangline.elastic.agent.wanted import Wanted


def test_a_restart_that_comes_before_its_world_is_kept():
    wanted = Wanted()
    wanted.leave(3, "a node is lost")
    assert wanted.notice(None) is None  # it is in no round that could be left
    assert wanted.notice(2).reason == wanted.notice(3).reason == "a node is lost"


def test_a_newer_world_stands():
    wanted = Wanted()
    wanted.leave(3, "")
    assert wanted.notice(4) is None
    wanted.leave(2, "late")
    assert wanted.notice(4) is None
    assert not wanted.notice(3).stops


def test_the_end_is_wanted_in_any_round():
    wanted = Wanted()
    wanted.end("suspended")
    wanted.leave(9, "")
    wanted.end("again")
    assert all(wanted.notice(each).stops for each in (None, 0, 99))
    assert wanted.notice(99).reason == "suspended"
