"""Resource arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.api import resource_list as lists
from gangline.api.core.container import Container, ResourceRequirements
from gangline.api.core.pod import PodSpec

COUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(0, 2**50)
)

AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "hugepages-2Mi", "nvidia.com/gpu"]),
    st.one_of(st.integers(0, 100), st.sampled_from(["250m", "3", "1.5"])),
)
REQUIREMENTS = st.builds(ResourceRequirements, requests=AMOUNTS, limits=AMOUNTS)
CONTAINERS = st.lists(
    st.builds(Container, resources=REQUIREMENTS, restart_policy=st.sampled_from(["", "Always"])),
    max_size=3,
)
SPECS = st.builds(
    PodSpec,
    containers=CONTAINERS,
    init_containers=CONTAINERS,
    overhead=AMOUNTS,
    resources=st.none() | REQUIREMENTS,
)


def a_container(cpu="0", *, restart_policy="", limit=None):
    limits = {"cpu": limit} if limit else {}
    requests = {"cpu": cpu} if cpu != "0" else {}
    resources = ResourceRequirements(limits=limits, requests=requests)
    return Container(name="c", resources=resources, restart_policy=restart_policy)


@pytest.mark.parametrize(
    ("spec", "milli_cpu"),
    [
        pytest.param(PodSpec(containers=[a_container("1"), a_container("500m")]), 1500, id="sum"),
        pytest.param(PodSpec(containers=[a_container(limit="2")]), 2000, id="limit stands in"),
        pytest.param(
            PodSpec(containers=[a_container("1")], init_containers=[a_container("3")]),
            3000,
            id="a large init container counts alone",
        ),
        pytest.param(
            PodSpec(
                containers=[a_container("1")],
                init_containers=[a_container("1", restart_policy="Always"), a_container("3")],
            ),
            4000,
            id="a sidecar runs beside later init containers",
        ),
        pytest.param(
            PodSpec(
                containers=[a_container("2")],
                init_containers=[a_container("2"), a_container("1", restart_policy="Always")],
            ),
            3000,
            id="a sidecar runs beside the containers",
        ),
        pytest.param(
            PodSpec(containers=[a_container("1")], overhead={"cpu": "250m"}),
            1250,
            id="the sandbox comes on top",
        ),
        pytest.param(
            PodSpec(
                containers=[a_container("1")],
                resources=ResourceRequirements(requests={"cpu": "5"}),
            ),
            5000,
            id="resources of the pod replace the sum",
        ),
    ],
)
def test_a_pod_asks_for(spec, milli_cpu):
    assert lists.pod_request(spec)["cpu"] == milli_cpu


def test_cpu_counts_in_thousandths_and_other_resources_in_units():
    written = {"cpu": "1.5", "memory": "1Gi", "nvidia.com/gpu": 2, "pods": "110"}
    counts = {"cpu": 1500, "memory": 2**30, "nvidia.com/gpu": 2, "pods": 110}
    assert lists.parse_resources(written) == counts
    assert lists.format_resources(counts) == {
        "cpu": "1500m",
        "memory": "1Gi",
        "nvidia.com/gpu": "2",
        "pods": "110",
    }


@given(COUNTS)
def test_amounts_survive_the_wire(counts):
    assert lists.parse_resources(lists.format_resources(counts)) == counts


@given(SPECS)
def test_single_resource_of_a_pod_equals_its_entry_in_all_resources(spec):
    request = lists.pod_request(spec)
    for resource in ("cpu", "memory", "hugepages-2Mi", "nvidia.com/gpu", "example.com/other"):
        assert lists.pod_request_for(spec, resource) == request.get(resource, 0)
