"""Our structs against the official client's: no field of a kind we describe may be missing."""

import re
from datetime import UTC, datetime

import kubernetes.client as official
import msgspec
import pytest

from gangline.api import resources
from gangline.api.cluster import apiextensions, rbac, workload
from gangline.api.core import core, node, pod, pod_status
from gangline.api.meta import objects
from gangline.api.schema import openapi as schemas

YOUNG = {
    # Fields of alpha features, or younger than the Kubernetes that these structs describe.
    "bindMountOptions", "declaredFeatures", "defaultUser", "evictionResponders",
    "extendedResourceClaimStatus", "healthStatus", "mode", "nodeAllocatableResourceClaimStatuses",
    "podPreemptionPolicy", "protocol", "runningInUserNamespace", "user", "userAnnotations",
    "volumeHealth", "ignoreStoreReadErrorWithClusterBreakingPotential",
}  # fmt: skip
KINDS = [
    (pod.Pod, official.V1Pod),
    (core.Node, official.V1Node),
    (core.Service, official.V1Service),
    (core.Endpoints, official.V1Endpoints),
    (core.EndpointSlice, official.V1EndpointSlice),
    (core.ConfigMap, official.V1ConfigMap),
    (core.Secret, official.V1Secret),
    (core.Event, official.CoreV1Event),
    (core.EventsEvent, official.EventsV1Event),
    (core.PersistentVolume, official.V1PersistentVolume),
    (core.PersistentVolumeClaim, official.V1PersistentVolumeClaim),
    (core.StorageClass, official.V1StorageClass),
    (core.ServiceAccount, official.V1ServiceAccount),
    (core.Namespace, official.V1Namespace),
    (core.Lease, official.V1Lease),
    (core.PriorityClass, official.V1PriorityClass),
    (core.PodDisruptionBudget, official.V1PodDisruptionBudget),
    (core.Deployment, official.V1Deployment),
    (core.ReplicaSet, official.V1ReplicaSet),
    (core.Binding, official.V1Binding),
    (core.Eviction, official.V1Eviction),
    (rbac.Role, official.V1Role),
    (rbac.RoleBinding, official.V1RoleBinding),
    (rbac.ClusterRole, official.V1ClusterRole),
    (rbac.ClusterRoleBinding, official.V1ClusterRoleBinding),
    (apiextensions.CustomResourceDefinition, official.V1CustomResourceDefinition),
]


def missing(schema, model, path=""):
    """Paths of fields that the official model has and the schema lacks."""
    properties = schema.get("properties", {})
    for attribute, field in model.attribute_map.items():
        where = f"{path}.{field}".lstrip(".")
        if field not in properties:
            yield where
            continue
        name = re.sub(
            r"^(list|List|dict|Dict)[\[(](str, ?)?|[\])]$", "", model.openapi_types[attribute]
        )
        inner = getattr(official, name, None)
        child = properties[field]
        child = child.get("items", child)
        if "properties" in child and hasattr(inner, "attribute_map") and name != "V1ObjectMeta":
            yield from missing(child, inner, where)


@pytest.mark.parametrize(("struct", "model"), KINDS, ids=lambda kind: kind.__name__)
def test_no_field_of_a_kind_is_missing(struct, model):
    absent = set(missing(schemas.openapi_schema(struct), model))
    assert not {path for path in absent if path.rpartition(".")[2] not in YOUNG}


def test_workloads_and_pod_groups_lack_only_fields_of_further_gates():
    assert set(missing(schemas.openapi_schema(workload.Workload), official.V1beta1Workload)) == {
        "spec.compositePodGroupTemplates",
        "spec.podGroupTemplates.preemptionPolicy",
        "spec.podGroupTemplates.resourceClaims",
    }
    group = schemas.openapi_schema(workload.KubernetesPodGroup)
    assert set(missing(group, official.V1beta1PodGroup)) == {
        "spec.parentCompositePodGroupName",
        "spec.preemptionPolicy",
        "spec.resourceClaims",
        "status.resourceClaimStatuses",
    }


def test_metadata_has_every_field_but_those_that_only_servers_read():
    absent = set(missing(schemas.openapi_schema(objects.ObjectMeta), official.V1ObjectMeta))
    assert absent == {"managedFields", "selfLink"}


@pytest.mark.parametrize(
    "resource", [*resources.BUILT_IN_RESOURCES, *resources.CUSTOM_RESOURCES], ids=lambda r: r.plural
)
def test_each_kind_decodes_an_empty_object_and_writes_nothing_that_was_not_set(resource):
    written = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "a"}}
    body = msgspec.json.encode(written)
    decoded = msgspec.json.decode(body, type=resource.type)
    assert msgspec.json.decode(msgspec.json.encode(decoded)) == written


def test_fields_that_break_the_rule_of_camel_case_are_spelt_as_kubernetes_spells_them():
    status = pod_status.PodStatus(
        pod_ip="1.2.3.4",
        host_ip="1.2.3.5",
        container_statuses=[pod_status.ContainerStatus(container_id="x", image_id="y")],
    )
    assert msgspec.to_builtins(status) == {
        "podIP": "1.2.3.4",
        "hostIP": "1.2.3.5",
        "containerStatuses": [{"containerID": "x", "imageID": "y"}],
    }
    endpoint = node.DaemonEndpoint(port=10250)
    assert msgspec.to_builtins(endpoint) == {"Port": 10250}


def test_times_with_and_without_fractions_are_read():
    spec = msgspec.json.decode(
        b'{"renewTime": "2026-01-01T00:00:00.000000Z", "acquireTime": "2026-01-01T00:00:00Z"}',
        type=core.LeaseSpec,
    )
    assert spec.renew_time == spec.acquire_time == datetime(2026, 1, 1, tzinfo=UTC)
