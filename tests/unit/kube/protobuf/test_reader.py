"""Objects in protobuf are read into the same structs as objects in JSON."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.api.core import devices
from gangline.api.meta.objects import Object, Wire
from gangline.api.meta.resource import Resource
from gangline.api.resources import BUILT_IN_RESOURCES, PODS
from gangline.kube.client.collection import has_protobuf
from gangline.kube.client.decoding import decode_object
from gangline.kube.protobuf.framing import open_envelope
from gangline.kube.protobuf.layout import UnreadableType
from gangline.kube.protobuf.reader import MalformedMessage, ObjectReader, object_reader
from gangline.operator.engine import observe
from gangline.scheduler import wire
from kubernetes_proto import EXAMPLES, encode_body, needs_sources
from unit.kube.protobuf import encoding

LEAN = [
    each for each in (*vars(wire).values(), *vars(devices).values()) if isinstance(each, Resource)
]
LEAN += [observe.PODS, observe.SERVICES, observe.NODES, *observe.OWNED_RESOURCES.values()]
FOLLOWED = [*BUILT_IN_RESOURCES, *LEAN]
NOT_IN_PROTOBUF = {
    "CustomResourceDefinition", "CSIStorageCapacity/v1beta1", "PodGroup/v1beta1", "Workload",
}  # fmt: skip
"""Kinds of groups that are not in the table: they are read as JSON."""


def named(resource: Resource[Any]) -> str:
    return f"{resource.type.__name__}-{resource.version}"


@pytest.mark.parametrize("resource", FOLLOWED, ids=named)
def test_every_struct_has_only_fields_of_its_messages(resource: Resource[Any]) -> None:
    names = {resource.kind, f"{resource.kind}/{resource.version}"}
    if not names & NOT_IN_PROTOBUF:
        ObjectReader(resource)
        assert has_protobuf(resource)


@pytest.mark.parametrize("condition", ["PodScheduled", "PodResizePending"])
@pytest.mark.parametrize("generation", [1, 2])
def test_statuses_of_containers_are_read_if_the_pod_may_be_resized(
    generation: int, condition: str
) -> None:
    amount = encoding.piece(1, b"cpu") + encoding.piece(2, encoding.piece(1, b"2"))
    container = encoding.piece(1, b"c") + encoding.piece(10, amount) + encoding.piece(11, b"")
    status = encoding.piece(2, encoding.piece(1, condition.encode())) + encoding.piece(8, container)
    meta = encoding.piece(1, b"p") + encoding.number(7, generation)
    raw = encoding.piece(1, meta) + encoding.piece(3, status)
    statuses = object_reader(wire.LEAN_PODS).read(raw).status.container_statuses
    if generation == 1 and condition == "PodScheduled":
        assert not statuses
    else:
        assert [(one.name, one.allocated_resources) for one in statuses] == [("c", {"cpu": "2"})]


def test_field_that_the_message_lacks_is_an_error() -> None:
    class Spec(Wire):
        node_name: str = ""
        nod_selector: str = ""

    class Mistyped(Object):
        spec: Spec = Spec()

    resource = Resource(Mistyped, "", "v1", "pods", "Pod")
    with pytest.raises(UnreadableType, match="v1#PodSpec has no nod_selector, which Spec reads"):
        ObjectReader(resource)


def test_absent_fields_have_the_values_of_the_struct() -> None:
    class Spec(Wire):
        node_name: str = "no node"
        """Zero is not its default: an empty text counts as absent."""
        host_network: bool = True
        priority: int | None = 7
        """A pointer in Go: zero is a value."""
        node_selector: dict[str, str] = msgspec.field(default_factory=lambda: {"all": "nodes"})
        overhead: dict[str, str] = msgspec.field(default_factory=dict)

    class Own(Object):
        spec: Spec = Spec()

    reader = ObjectReader(Resource(Own, "", "v1", "pods", "Pod"))
    assert reader.read(b"") == Own(api_version="v1", kind="Pod")
    # Fields of the spec: 10 is the node, 11 the host's network, 25 the priority.
    zeros = encoding.piece(10, b"") + encoding.number(11, 0) + encoding.number(25, 0)
    spec = reader.read(encoding.piece(2, zeros)).spec
    assert (spec.node_name, spec.host_network, spec.priority) == ("no node", True, 0)
    assert spec.node_selector == {"all": "nodes"}
    assert spec.overhead is not reader.read(encoding.piece(2, zeros)).spec.overhead


def test_field_that_the_struct_requires_must_be_given() -> None:
    class Spec(Wire):
        node_selector: dict[str, str]

    class Own(Object):
        spec: Spec = Spec({})

    reader = ObjectReader(Resource(Own, "", "v1", "pods", "Pod"))
    with pytest.raises(MalformedMessage, match="node_selector is missing"):
        reader.read(encoding.piece(2, b""))


def test_plain_data_and_custom_kinds_are_not_read_from_protobuf() -> None:
    assert not has_protobuf(Resource(dict[str, Any], "", "v1", "pods", "Pod"))
    assert not has_protobuf(Resource(Object, "example.com", "v1", "things", "Thing"))


def examples() -> list[Any]:
    """Return the path of each example of Kubernetes, with the structs that read its kind."""
    found = []
    for path in sorted(EXAMPLES.glob("*.pb")):
        text = path.with_suffix(".json").read_bytes()
        head = json.loads(text)
        api_version, kind = head.get("apiVersion"), head.get("kind")
        found += [
            pytest.param(path, each, id=f"{path.stem}-{named(each)}")
            for each in dict.fromkeys(FOLLOWED)
            if (each.api_version, each.kind) == (api_version, kind) and has_protobuf(each)
        ]
    return found


@needs_sources
@pytest.mark.parametrize(("path", "resource"), examples())
def test_examples_of_kubernetes_are_read_as_their_json(path: Path, resource: Any) -> None:
    expected = decode_object(resource.type, path.with_suffix(".json").read_bytes())
    assert object_reader(resource).read(open_envelope(path.read_bytes())) == expected
    assert expected != resource.type()


TEXT = st.text("abc-é", max_size=6)
WORD = st.text("abcxyz", min_size=1, max_size=6)
TIME = st.integers(1, 2_000_000_000).map(
    lambda s: f"{1970 + s // 100_000_000}-01-01T00:00:{s % 59 + 1:02}Z"
)
QUANTITY = st.sampled_from(["1", "500m", "4Gi", "0", "1500"])
LABELS = st.dictionaries(WORD, TEXT, max_size=3)
COUNT = st.integers(-(2**31), 2**31 - 1)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of objects in which any field may be absent."""
    return st.fixed_dictionaries({}, optional=fields)


SELECTOR = some(
    matchLabels=LABELS,
    matchExpressions=st.lists(
        some(key=WORD, operator=st.sampled_from(["In", "Exists"]), values=st.lists(WORD)),
        max_size=2,
    ),
)
AFFINITY_TERM = some(labelSelector=SELECTOR, topologyKey=WORD, namespaces=st.lists(WORD))
CONTAINER = some(
    name=WORD,
    image=TEXT,
    resources=some(
        requests=st.dictionaries(WORD, QUANTITY), limits=st.dictionaries(WORD, QUANTITY)
    ),
    ports=st.lists(some(hostPort=COUNT, containerPort=COUNT, protocol=TEXT), max_size=2),
    restartPolicy=TEXT,
)
POD = st.fixed_dictionaries(
    {"apiVersion": st.just("v1"), "kind": st.just("Pod")},
    optional={
        "metadata": some(
            name=WORD,
            namespace=WORD,
            uid=WORD,
            resourceVersion=WORD,
            generation=COUNT,
            creationTimestamp=TIME,
            deletionTimestamp=TIME,
            deletionGracePeriodSeconds=COUNT,
            labels=LABELS,
            annotations=LABELS,
            finalizers=st.lists(WORD),
            ownerReferences=st.lists(
                some(kind=WORD, name=WORD, uid=WORD, controller=st.booleans()), max_size=2
            ),
        ),
        "spec": some(
            containers=st.lists(CONTAINER, max_size=2),
            initContainers=st.lists(CONTAINER, max_size=1),
            nodeName=TEXT,
            priority=COUNT,
            activeDeadlineSeconds=COUNT,
            overhead=st.dictionaries(WORD, QUANTITY),
            tolerations=st.lists(some(key=WORD, tolerationSeconds=COUNT), max_size=2),
            affinity=some(
                podAffinity=some(
                    requiredDuringSchedulingIgnoredDuringExecution=st.lists(
                        AFFINITY_TERM, max_size=2
                    )
                )
            ),
            volumes=st.lists(
                some(name=WORD, persistentVolumeClaim=some(claimName=WORD)), max_size=2
            ),
        ),
        "status": some(
            phase=TEXT,
            startTime=TIME,
            conditions=st.lists(
                some(
                    type=WORD,
                    status=TEXT,
                    lastTransitionTime=TIME,
                    observedGeneration=st.integers(1, 9),
                ),
                max_size=2,
            ),
        ),
    },
)


@needs_sources
@pytest.mark.parametrize(
    "resource", [wire.LEAN_PODS, wire.IMAGED_PODS, observe.PODS, PODS], ids=named
)
@settings(max_examples=40, deadline=None)
@given(pod=POD)
def test_any_pod_is_read_as_its_json(resource: Resource[Any], pod: dict[str, Any]) -> None:
    found = object_reader(resource).read(open_envelope(encode_body(pod)))
    assert found == decode_object(resource.type, msgspec.json.encode(pod))


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(MalformedMessage):
        object_reader(PODS).read(b"\x0a\xff\xff")
    with pytest.raises(MalformedMessage, match="utf-8"):
        # Field 2 is the spec, its field 10 the node.
        object_reader(wire.LEAN_PODS).read(b"\x12\x04\x52\x02\xff\xff")
