"""Pending orders: an order to leave a round applies before and after the round's world."""

from gangline.elastic.agent.membership.membership import PendingOrders


def test_restart_order_before_its_world_is_retained():
    orders = PendingOrders()
    orders.order_leave(3, "a node is lost")
    assert orders.notice(None) is None  # there is no round to leave
    assert orders.notice(2).reason == orders.notice(3).reason == "a node is lost"


def test_newer_world_is_not_left():
    orders = PendingOrders()
    orders.order_leave(3, "")
    assert orders.notice(4) is None
    orders.order_leave(2, "late")
    assert orders.notice(4) is None
    assert not orders.notice(3).stops


def test_stop_applies_to_any_round():
    orders = PendingOrders()
    orders.order_stop("suspended")
    orders.order_leave(9, "")
    orders.order_stop("again")
    assert all(orders.notice(each).stops for each in (None, 0, 99))
    assert orders.notice(99).reason == "suspended"
