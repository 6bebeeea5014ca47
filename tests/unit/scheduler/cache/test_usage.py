"""Usage by gang and by queue."""

from heapq import nlargest
from random import Random

from gangline.scheduler.cache.usage import UsageLedger
from gangline.scheduler.types.types import GroupKey


def test_largest_users_equal_a_fresh_count() -> None:
    random = Random(3)
    ledger = UsageLedger("default")
    for _ in range(2_000):
        group = GroupKey(f"d/{random.randrange(20)}")
        held = ledger.by_group.get(group, {}).get("cpu", 0)
        more = random.random() < 0.45 or not held
        ledger.charge(group, (("cpu", random.randint(1, 5) if more else held),), 1 if more else -1)
        if random.random() < 0.6:
            everybody = ((used["cpu"], name) for name, used in ledger.by_group.items())
            expected = [(name, amount) for amount, name in nlargest(4, everybody)]
            assert ledger.largest("cpu", 4) == expected


def test_charges_of_past_gangs_are_not_stored() -> None:
    ledger = UsageLedger("default")
    for result_was_read in (False, True):
        for number in range(3_000):
            group = GroupKey(f"d/{number}")
            ledger.charge(group, (("cpu", 1),))
            ledger.charge(group, (("cpu", 1),), -1)
            if result_was_read and number == 0:
                assert ledger.largest("cpu", 4) == []
        assert len(ledger._charged) <= 1_000
        assert not ledger.by_group
    ledger.charge(GroupKey("d/last"), (("cpu", 2),))
    assert ledger.largest("cpu", 4) == [("d/last", 2)]
