"""Address ranges avoid overlaps; a pool assigns each address once."""

from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.local.network.addresses import CANDIDATES, AddressPool, choose_range, split_range
from gangline.local.network.interface import NetworkError

DEFAULTS_OF_OTHERS = [
    IPv4Network("10.0.0.0/16"),
    IPv4Network("10.42.0.0/15"),
    IPv4Network("10.96.0.0/12"),
    IPv4Network("10.244.0.0/16"),
    IPv4Network("172.16.0.0/12"),
]


def test_no_candidate_overlaps_default_ranges_of_other_clusters() -> None:
    clashes = [c for c in CANDIDATES for other in DEFAULTS_OF_OTHERS if c.overlaps(other)]
    assert clashes == []


def test_preferred_range_is_chosen_while_it_is_free() -> None:
    preferred = IPv4Network("10.77.0.0/16")
    assert choose_range([], preferred) == preferred
    assert choose_range([IPv4Network("10.77.3.0/24")], preferred) != preferred


def test_a_default_route_is_no_clash_but_any_other_route_is() -> None:
    everything = IPv4Network("0.0.0.0/0")
    assert choose_range([everything], None) == CANDIDATES[0]
    assert choose_range([everything, CANDIDATES[0]], None) == CANDIDATES[1]


def test_error_names_the_option_when_all_candidates_are_taken() -> None:
    with pytest.raises(NetworkError, match="--pod-cidr"):
        choose_range([IPv4Network("10.0.0.0/8")], None)


def test_a_range_is_halved_and_its_first_address_is_the_hosts() -> None:
    ranges = split_range(IPv4Network("10.201.0.0/16"))
    assert str(ranges.pods) == "10.201.0.0/17"
    assert str(ranges.services) == "10.201.128.0/17"
    assert ranges.gateway == "10.201.0.1"


def test_a_freed_address_rests_before_it_is_used_again() -> None:
    pool = AddressPool(IPv4Network("10.0.0.0/29"))
    first, second = pool.allocate(), pool.allocate()
    pool.release(first)
    assert pool.allocate() not in (first, second)


def test_exhausted_pool_raises_and_recovers() -> None:
    pool = AddressPool(IPv4Network("10.0.0.0/30"), reserved=["10.0.0.1"])
    only = pool.allocate()
    with pytest.raises(NetworkError, match="in use"):
        pool.allocate()
    pool.release(only)
    assert pool.allocate() == only


@given(st.lists(st.booleans(), max_size=60))
def test_no_address_is_held_twice_and_none_is_reserved(steps: list[bool]) -> None:
    network = IPv4Network("10.0.0.0/28")
    pool = AddressPool(network, reserved=["10.0.0.1"])
    held: list[str] = []
    for take in steps:
        if take and len(held) < 13:
            address = pool.allocate()
            assert address not in held
            assert address not in ("10.0.0.0", "10.0.0.1", "10.0.0.15")
            held.append(address)
        elif held:
            pool.release(held.pop(0))
