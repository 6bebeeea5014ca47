"""When pods leave devices with NoExecute taints, as in kube-controller-manager."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gangline.api.core.devices import AllocatedDevice, DeviceTaint, DeviceTaintRule, ResourceSlice
from gangline.local.controllers.device_taints import leaving_time, taints_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BROKEN = {"key": "broken", "effect": "NoExecute"}


def device(*tolerations: dict[str, Any]) -> AllocatedDevice:
    where = {"request": "r", "driver": "d", "pool": "p", "device": "0"}
    return msgspec.convert(where | {"tolerations": tolerations}, AllocatedDevice)


def in_slice(name: str, *taints: dict[str, str], generation: int = 1) -> ResourceSlice:
    devices = [{"name": name, "taints": taints}]
    pool = {"name": "p", "generation": generation}
    spec = {"driver": "d", "pool": pool, "devices": devices}
    return msgspec.convert({"spec": spec}, ResourceSlice)


def rule(effect: str = "NoExecute", **selector: str) -> DeviceTaintRule:
    taint = {"key": "rule", "effect": effect}
    spec = {"deviceSelector": selector, "taint": taint}
    return msgspec.convert({"spec": spec}, DeviceTaintRule)


def test_taints_of_a_device_are_those_of_its_newest_slice_and_of_rules_that_select_it() -> None:
    slices = [
        in_slice("0", {"key": "old", "effect": "NoExecute"}),
        in_slice("0", BROKEN, {"key": "k", "effect": "NoSchedule"}, generation=2),
        in_slice("1", {"key": "other", "effect": "NoExecute"}, generation=2),
    ]
    none = msgspec.convert({"spec": {"taint": BROKEN | {"key": "none"}}}, DeviceTaintRule)
    others = [rule(device="1"), rule(pool="q"), rule(driver="e"), rule("None"), none]
    for own in (rule(), rule(driver="d", pool="p", device="0")):
        keys = [taint.key for taint in taints_of(device(), slices, [*others, own])]
        assert keys == ["broken", "rule"]


def tolerates(**fields: Any) -> dict[str, Any]:
    return {"key": "broken", "operator": "Exists", **fields}


@pytest.mark.parametrize(
    ("tolerations", "stays_s"),
    [
        ([], 0),
        ([{"key": "another", "operator": "Exists"}], 0),
        ([tolerates(effect="NoSchedule")], 0),
        ([tolerates(tolerationSeconds=60)], 60),
        ([tolerates(tolerationSeconds=60), tolerates(tolerationSeconds=9)], 9),
        ([tolerates(tolerationSeconds=-5)], 0),
        ([tolerates()], None),
        ([tolerates(tolerationSeconds=9), tolerates()], None),
    ],
)
def test_pods_leave_after_the_shortest_toleration_unless_one_has_no_limit(
    tolerations: list[dict[str, Any]], stays_s: int | None
) -> None:
    user = device(*tolerations)
    timed = msgspec.convert({**BROKEN, "timeAdded": NOW}, DeviceTaint)
    untimed = msgspec.convert(BROKEN, DeviceTaint)
    later = NOW + timedelta(seconds=1000)
    expected = None if stays_s is None else NOW + timedelta(seconds=stays_s)
    assert leaving_time(user, [timed], {}, later) == expected
    assert leaving_time(user, [untimed], {untimed: NOW}, later) == expected
    assert leaving_time(user, [untimed], {}, NOW) == expected
