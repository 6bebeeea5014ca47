"""Facts of masters: what is believed, and that nothing of them ends the process."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.jobs.training_facts import DISTURBED, GOOD, StepSeconds
from gangline.brain.collection.live_facts import MAX_FACTS_BYTES, digest_facts
from gangline.brain.facts.belief import FUTURE_MS

NOW = 1_795_168_800_000
SEGMENT = {
    "round": 1,
    "since": NOW - 600_000,
    "until": NOW - 300_000,
    "nodes": 2,
    "procs": 16,
    "steps": 300,
    "stepSeconds": {"count": 300, "mean": 1.0, "m2": 0.25},
    "computeSeconds": 0.7,
    "microBatch": 8,
    "deviceModel": "H100",
}


def document(*segments: Any, **more: Any) -> str:
    return json.dumps({"v": 1, "segments": list(segments), **more})


def test_segment_is_stored_as_it_is_reported() -> None:
    facts = digest_facts(document(SEGMENT), NOW)
    (segment,) = facts.facts.segments
    assert (segment.step_seconds, segment.compute_seconds) == (StepSeconds(300, 1.0, 0.25), 0.7)
    assert (segment.nodes, segment.procs, segment.device_model) == (2, 16, "H100")
    assert segment.quality == GOOD
    assert segment.sync_seconds is None
    assert facts.dropped == 0


@pytest.mark.parametrize(
    "change",
    [
        {"stepSeconds": {"count": 1, "mean": 1e-6}},
        {"stepSeconds": {"count": 1, "mean": 1e300}},
        {"stepSeconds": {"count": 1, "mean": -1.0}},
        {"steps": 0},
        {"nodes": -2},
        {"procs": 1},
        {"since": NOW, "until": NOW - 1},
        {"steps": "many"},
        {"round": None},
    ],
    ids=str,
)
def test_impossible_segment_is_dropped_and_counted_beside_a_good_one(change: Any) -> None:
    facts = digest_facts(document(SEGMENT | change, SEGMENT), NOW)
    assert (len(facts.facts.segments), facts.dropped) == (1, 1)


def test_impossible_detail_of_a_segment_is_unknown_and_counted() -> None:
    digested = digest_facts(document(SEGMENT | {"microBatch": -8}), NOW)
    assert [segment.micro_batch for segment in digested.facts.segments] == [None]
    assert digested.dropped == 1


def test_segment_of_the_future_is_disturbed() -> None:
    late = SEGMENT | {"until": NOW + FUTURE_MS + 1000}
    (segment,) = digest_facts(document(late), NOW).facts.segments
    assert segment.quality == DISTURBED


def test_nan_is_not_json() -> None:
    text = document(SEGMENT).replace("1.0", "NaN")
    assert digest_facts(text, NOW).problem.startswith("is not JSON")


def test_unknown_version_and_large_documents_are_refused_with_a_reason() -> None:
    assert "version 2" in digest_facts(json.dumps({"v": 2}), NOW).problem
    assert "bytes" in digest_facts(" " * (MAX_FACTS_BYTES + 1), NOW).problem
    assert digest_facts("[]", NOW).problem == "is not a JSON object"
    assert digest_facts("[" * 60_000, NOW).problem.startswith("is not JSON")


def test_memory_of_pods_is_believed_within_limits() -> None:
    pod = {"name": "a", "rank": 0, "since": NOW - 1000, "until": NOW, "peakMemoryBytes": 1 << 30}
    facts = digest_facts(document(pods=[pod, pod | {"peakMemoryBytes": 1 << 60}]), NOW)
    assert [pod_facts.peak_memory_bytes for pod_facts in facts.facts.pods] == [1 << 30]
    assert facts.dropped == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
entries = st.dictionaries(st.sampled_from(sorted(SEGMENT)), json_values, max_size=6).map(
    lambda change: SEGMENT | change
)


@given(st.lists(entries | json_values, max_size=4), json_values, json_values)
def test_no_document_raises_and_every_segment_is_possible(
    segments: list[Any], pods: Any, model: Any
) -> None:
    text = json.dumps({"v": 1, "segments": segments, "pods": pods, "model": model})
    facts = digest_facts(text, NOW)
    for segment in facts.facts.segments:
        assert 1e-5 <= segment.step_seconds.mean <= 7 * 86_400
        assert segment.steps > 0


@given(st.binary(max_size=200))
def test_no_bytes_raise(raw: bytes) -> None:
    digest_facts(raw, NOW)
