"""Pending orders: an order to leave a round applies before and after the round's world."""

from gangline.elastic.agent.membership.membership import PendingOrders


def test_restart_order_before_its_world_is_retained():
    wanted = PendingOrders()
    wanted.order_leave(3, "a node is lost")
    assert wanted.notice(None) is None  # there is no round to leave
    assert wanted.notice(2).reason == wanted.notice(3).reason == "a node is lost"


def test_newer_world_is_not_left():
    wanted = PendingOrders()
    wanted.order_leave(3, "")
    assert wanted.notice(4) is None
    wanted.order_leave(2, "late")
    assert wanted.notice(4) is None
    assert not wanted.notice(3).stops


def test_stop_applies_to_any_round():
    wanted = PendingOrders()
    wanted.order_stop("suspended")
    wanted.order_leave(9, "")
    wanted.order_stop("again")
    assert all(wanted.notice(each).stops for each in (None, 0, 99))
    assert wanted.notice(99).reason == "suspended"
