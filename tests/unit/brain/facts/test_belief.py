"""Impossible facts are dropped by name, and nothing that arrives makes the checks fail (G8)."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brain_records import NOW_MS, a_job, a_node_speed, a_pod, a_segment
from gangline.api.jobs.training_facts import SegmentFacts
from gangline.brain.facts.belief import (
    NAME_LENGTH,
    believe,
)
from gangline.brain.facts.records import Image, NodeSpeed, PodRun, RecordedJob, RoleSize, Wishes

WILD_INTEGERS = st.integers() | st.sampled_from([-1, 0, 2**53, 2**63, 2**64, 10**30])
WILD_REALS = st.floats() | st.sampled_from([1e300, -1e300, math.nan, math.inf, 5e-324])
WILD_TEXTS = st.text(max_size=20) | st.sampled_from(
    ["x" * 1_000_000, "x" * 253, "x" * 254, "\0", "\ud800", " a", "a ", "🛷", "Train", "train"]
)


def wild(kind: type[msgspec.Struct], base: msgspec.Struct) -> st.SearchStrategy[Any]:
    """``base`` with any values of the types of its fields."""
    changes = {}
    for name in kind.__struct_fields__:
        if name in ("restarts", "slowest"):
            continue
        match getattr(base, name):
            case bool():
                changes[name] = st.booleans()
            case int():
                changes[name] = WILD_INTEGERS
            case float():
                changes[name] = WILD_REALS
            case None:
                changes[name] = st.none() | WILD_INTEGERS
            case str() as text if type(text) is str:
                changes[name] = WILD_TEXTS
            case _:
                continue
    return st.fixed_dictionaries({}, optional=changes).map(
        lambda values: msgspec.structs.replace(base, **values)
    )


def storable(record: msgspec.Struct) -> bool:
    """Whether every value fits into columns of the three databases."""
    for name in record.__struct_fields__:
        match getattr(record, name):
            case bool() | None:
                continue
            case str() as text:
                text.encode()
                if len(text) > 512 or "\0" in text or text != text.strip():
                    return False
            case int() as number:
                if not -(2**63) <= number < 2**63:
                    return False
            case float() as number:
                if not math.isfinite(number) or abs(number) > 1e60:
                    return False
            case msgspec.Struct() as inner:
                if not storable(inner):
                    return False
    return True


@given(job=wild(RecordedJob, a_job(1)), image=wild(Image, Image(repository="r")))
def test_any_job_is_dropped_or_storable(job: RecordedJob, image: Image) -> None:
    believed, dropped = believe(msgspec.structs.replace(job, image=image), NOW_MS)
    assert dropped if believed is None else storable(believed)


@given(size=wild(RoleSize, a_job().roles[0]))
def test_any_size_of_a_role_is_dropped_or_storable(size: RoleSize) -> None:
    believed, _ = believe(a_job(1, roles=(size,)), NOW_MS)
    assert believed is not None
    assert all(storable(role) for role in believed.roles)


SEGMENT = a_segment(grad_sqr=0.1, sync_seconds=2e-07, data_seconds=1e-07)


@given(record=wild(SegmentFacts, SEGMENT) | wild(PodRun, a_pod()) | wild(NodeSpeed, a_node_speed()))
def test_any_other_record_is_dropped_or_storable(record: SegmentFacts | PodRun | NodeSpeed) -> None:
    believed, dropped = believe(record, NOW_MS)
    assert dropped if believed is None else storable(believed)


def test_what_is_possible_is_not_changed() -> None:
    job, segment, pod = a_job(), a_segment(), a_pod()
    assert believe(job, NOW_MS) == (job, [])
    assert believe(segment, NOW_MS) == (segment, [])
    assert believe(pod, NOW_MS) == (pod, [])


def test_peak_of_zero_is_unknown() -> None:
    believed, dropped = believe(a_pod(peak_memory_bytes=0), NOW_MS)
    assert believed is not None
    assert believed.peak_memory_bytes is None
    assert dropped == ["PodRun.peak_memory_bytes"]


@pytest.mark.parametrize("name", ["x" * (NAME_LENGTH + 1), "a\0b", "train ", ""])
def test_job_without_a_possible_name_is_dropped(name: str) -> None:
    assert believe(a_job(1, name=name), NOW_MS)[0] is None


@pytest.mark.parametrize("name", ["x" * NAME_LENGTH, "🛷" * NAME_LENGTH, "Train", "train"])
def test_long_and_foreign_names_are_possible(name: str) -> None:
    job = a_job(1, name=name)
    assert believe(job, NOW_MS) == (job, [])


def test_wishes_of_a_megabyte_are_dropped() -> None:
    wishes = Wishes(may=frozenset({"x" * 1_000_000}))
    believed, dropped = believe(a_job(1, wishes=wishes), NOW_MS)
    assert believed is not None
    assert believed.wishes == Wishes()
    assert dropped == ["RecordedJob.wishes"]
