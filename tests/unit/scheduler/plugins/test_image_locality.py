"""Image locality: its scores, and that nothing is decoded while it has no weight."""

import json
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api.core.node import Node
from gangline.api.meta.resource import Resource
from gangline.kube.client.client import ApiClient
from gangline.kube.client.decoding import decode_object
from gangline.scheduler.cache.cache import SchedulerCache
from gangline.scheduler.cache.convert import have_same_shape, node_info, pod_info
from gangline.scheduler.cache.convert_placement import slim_node, slim_node_with_images
from gangline.scheduler.cache.node_table import NodeTable
from gangline.scheduler.informers import SchedulerInformers
from gangline.scheduler.placement.scratch import ScratchAllocation
from gangline.scheduler.plugins.image_locality import normalize_image_name
from gangline.scheduler.plugins.scores import ScoreWeights
from gangline.scheduler.queueing.gangs import with_required_nodes
from gangline.scheduler.reporting.replay import read_cluster_state
from gangline.scheduler.settings import SchedulerSettings
from gangline.scheduler.types import (
    NodeInfo,
    NodeName,
    PlacementConstraints,
    PodInfo,
    RequiredNodeTerms,
    shape_of,
)
from gangline.scheduler.wire import IMAGED_PODS, LEAN_PODS, ImagedPod, LeanPod, slim_pod
from unit.scheduler.builders import (
    RecordingListener,
    change_node,
    cluster,
    decide,
    listing,
    node,
    pod,
)

MIB = 2**20
COUNTED = ScoreWeights(images=1)
ONLY_IMAGES = ScoreWeights(packing=0, images=1)


def has(name: str, **mebibytes: int) -> NodeInfo:
    """Return a node with images of so many MiB, tagged ``latest``."""
    images = {f"{image}:latest": size * MIB for image, size in mebibytes.items()}
    return replace(node(name), images=tuple(sorted(images.items())))


def of(each: PodInfo, *images: str) -> PodInfo:
    """Return the pod with containers of these images."""
    own = each.shape
    names = sorted(map(normalize_image_name, images))
    return msgspec.structs.replace(each, shape=shape_of(own.request, own.constraints, *names))


def where(state: SchedulerCache) -> dict[str, str]:
    return {binding.pod.partition("/")[2]: str(binding.node) for binding in decide(state).bindings}


def scores(table: NodeTable, waiting: PodInfo) -> dict[str, float]:
    """Return how well each node suits the pod."""
    table.demand(waiting.shape.request)  # as for every pod that waits: it adds columns
    found = table.scores(waiting.shape, table.allocatable - table.used)
    return {str(name): float(found[row]) for name, row in table.rows.items()}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("a", "a:latest"),
        ("a:1", "a:1"),
        ("r.example:5000/a", "r.example:5000/a:latest"),
        ("r.example:5000/a:1", "r.example:5000/a:1"),
        ("r.example/a@sha256:0f", "r.example/a@sha256:0f"),
    ],
)
def test_without_tag_and_digest_the_latest_is_meant(written: str, read: str) -> None:
    assert normalize_image_name(written) == read


@pytest.mark.parametrize(
    ("nodes", "images", "expected"),
    [
        pytest.param([{"a": 1000}], ["a"], 1.0, id="the most"),
        pytest.param([{"a": 5000}], ["a"], 1.0, id="more than counts"),
        pytest.param([{"a": 23}], ["a"], 0.0, id="the least"),
        pytest.param([{"a": 10}], ["a"], 0.0, id="less than counts"),
        pytest.param([{"a": 250}], ["a"], 227 / 977, id="in proportion between them"),
        pytest.param([{"a": 1000}, {}], ["a"], 477 / 977, id="half of the nodes have it"),
        pytest.param([{"a": 1000}, {"a": 500}], ["a"], 1.0, id="each by its own size"),
        pytest.param([{"a": 500}, {"a": 1000}], ["a"], 477 / 977, id="which may differ"),
        pytest.param([{"a": 600, "b": 300}], ["a", "b"], 877 / 1977, id="two containers"),
        pytest.param([{"a": 600}], ["a", "b"], 577 / 1977, id="one image is not there"),
        pytest.param([{"a": 600}], ["a", "a"], 1177 / 1977, id="two containers of one image"),
        pytest.param([{"a": 800, "b": 800}, {"b": 1}], ["a", "b"], 1177 / 1977, id="two shares"),
        pytest.param([{}], ["a"], 0.0, id="nothing is there"),
    ],
)
def test_the_score_of_the_first_node(
    nodes: list[dict[str, int]], images: list[str], expected: float
) -> None:
    facts = [has(f"n{index}", **each) for index, each in enumerate(nodes)]
    waiting = of(pod("p"), *images)
    spare = scores(cluster(*facts, weights=ONLY_IMAGES).nodes, waiting)["n0"]
    assert spare == pytest.approx(expected)
    doubled = replace(ONLY_IMAGES, images=2)
    assert scores(cluster(*facts, weights=doubled).nodes, waiting)["n0"] == 2 * spare


def test_pods_go_to_the_node_that_has_their_image() -> None:
    nodes = has("a"), has("b", train=800), has("c", serve=800)
    pods = of(pod("p"), "train:latest"), of(pod("q"), "serve"), of(pod("r"), "other")
    assert where(cluster(*nodes, *pods, weights=ONLY_IMAGES)) == {"p": "b", "q": "c", "r": "a"}
    assert where(cluster(*nodes, *pods)) == {"p": "a", "q": "a", "r": "a"}


def test_pods_of_a_bucket_score_the_images_of_all() -> None:
    nodes = has("a", server=900), has("b", server=900, worker=900), has("c", worker=900)
    table = cluster(*nodes, weights=ONLY_IMAGES).nodes
    row = ScratchAllocation(table).place_together(
        [of(pod("s"), "server"), of(pod("w"), "worker")], set()
    )
    assert row == table.rows[NodeName("b")]


def test_terms_of_queues_and_claims_keep_the_images() -> None:
    waiting = of(pod("p"), "train")
    kept = with_required_nodes(waiting, (RequiredNodeTerms((), "why"),))
    assert kept.shape.constraints != waiting.shape.constraints
    assert kept.shape.images == waiting.shape.images == ("train:latest",)


NAMES = [NodeName(f"n{index}") for index in range(20)]
"""More than a table has rows for at first."""
SOME_IMAGES = st.dictionaries(st.sampled_from("abc"), st.sampled_from((0, 100, 500, 2000)))
CHANGES = st.lists(
    st.builds(lambda name, images: has(name, **images), st.sampled_from(NAMES), SOME_IMAGES)
    | st.sampled_from(NAMES),
    max_size=40,
)


@given(CHANGES)
def test_cached_scores_equal_fresh_scores_exactly(
    changes: list[NodeInfo | NodeName],
) -> None:
    pods = [of(pod("p"), *images) for images in (["a"], ["a", "b"], ["b", "c", "c"])]
    table, left = NodeTable(COUNTED), dict[NodeName, NodeInfo]()
    for change in changes:
        change_node(table, left, change)
        for each in pods:
            scores(table, each)
    new = NodeTable(COUNTED)
    for name in sorted(left):
        new.set(left[name])
    for each in pods:
        assert scores(table, each) == scores(new, each)


RAW_NODE: dict[str, Any] = {
    "metadata": {"name": "b"},
    "status": {
        "allocatable": {"cpu": "8", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "images": [
            {"names": ["r/train@sha256:0f", "r/train:1"], "sizeBytes": 900 * MIB},
            {"names": ["r/odd"], "sizeBytes": -1},
            {"sizeBytes": 5},
        ],
    },
}
RAW_POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "d", "uid": "u"},
    "spec": {
        "schedulerName": "gangline",
        "initContainers": [{"image": "r/setup"}],
        "containers": [{"image": "r/train:1"}, {"image": "r:5000/side"}],
    },
}


def read(kind: type[LeanPod], raw: dict[str, Any] = RAW_POD) -> LeanPod:
    return slim_pod(decode_object(kind, json.dumps(raw).encode()))


def test_a_pod_has_the_images_of_all_its_containers() -> None:
    facts = pod_info(read(ImagedPod), {}, frozenset({"gangline"}))
    assert facts.shape.images == ("r/setup:latest", "r/train:1", "r:5000/side:latest")


def test_pods_with_different_images_have_different_shapes() -> None:
    other = {**RAW_POD, "spec": {**RAW_POD["spec"], "initContainers": [{"image": "r/else"}]}}
    assert not have_same_shape(read(ImagedPod).spec, read(ImagedPod, other).spec)
    assert have_same_shape(read(LeanPod).spec, read(LeanPod, other).spec)


def test_a_node_has_its_images_by_each_of_their_names() -> None:
    facts = node_info(msgspec.convert(RAW_NODE, Node), images=True)
    assert facts.images == (
        ("r/odd:latest", 0),
        ("r/train:1", 900 * MIB),
        ("r/train@sha256:0f", 900 * MIB),
    )
    turned = {**RAW_NODE["status"], "images": RAW_NODE["status"]["images"][::-1]}
    assert node_info(msgspec.convert({**RAW_NODE, "status": turned}, Node), images=True) == facts


def test_images_that_many_nodes_have_are_kept_once() -> None:
    one, other = (slim_node_with_images(msgspec.convert(RAW_NODE, Node)) for _ in range(2))
    pairs = zip(one.status.images, other.status.images, strict=True)
    assert all(image is same for image, same in pairs)
    assert node_info(one, images=True).images == node_info(other, images=True).images != ()


def test_at_weight_nothing_images_are_neither_read_nor_kept_nor_counted() -> None:
    facts = pod_info(read(LeanPod), {}, frozenset({"gangline"}))
    assert not any(hasattr(each, "image") for each in read(LeanPod).spec.containers)
    assert facts.shape is shape_of(facts.shape.request, PlacementConstraints())
    stored = msgspec.convert(RAW_NODE, Node)
    assert slim_node(stored).status.images == []
    assert node_info(stored).images == ()
    state = cluster(has("a"), has("b", train=900), of(pod("p"), "train"))
    assert where(state) == {"p": "a"}
    table = state.nodes
    shape = of(pod("p"), "train").shape
    assert table.scoring_inputs(shape, table.allocatable - table.used).images is None


def informers(weights: ScoreWeights) -> SchedulerInformers:
    client, settings = cast("ApiClient", None), SchedulerSettings(weights=weights)
    return SchedulerInformers(client, settings, RecordingListener())


@pytest.mark.parametrize(
    ("weights", "pods", "images"),
    [
        pytest.param(ScoreWeights(), LEAN_PODS, 0, id="0"),
        pytest.param(COUNTED, IMAGED_PODS, 3, id="1"),
    ],
)
def test_informers_decode_images_only_if_they_have_a_weight(
    weights: ScoreWeights, pods: Resource[LeanPod], images: int
) -> None:
    of_pods, of_nodes, _ = informers(weights).required
    assert of_pods.resource is pods
    assert of_nodes.transform is not None
    assert len(of_nodes.transform(msgspec.convert(RAW_NODE, Node)).status.images) == images


def listed() -> ApiClient:
    """A cluster of two nodes, of which one has the images of the one pod."""
    bare = {**RAW_NODE["status"], "images": []}
    nodes = [{"metadata": {"name": "a"}, "status": bare}, RAW_NODE]
    return listing(nodes=nodes, pods=[RAW_POD])


@pytest.mark.parametrize(("weights", "goes_to"), [(ScoreWeights(), "a"), (COUNTED, "b")])
async def test_an_explanation_counts_images_as_the_scheduler_does(
    weights: ScoreWeights, goes_to: str
) -> None:
    state = await read_cluster_state(listed(), frozenset({"gangline"}), weights)
    assert where(state) == {"p": goes_to}
