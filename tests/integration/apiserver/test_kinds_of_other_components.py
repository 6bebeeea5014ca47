"""Kinds that kube-scheduler, kube-controller-manager and drivers list, watch and write."""

import asyncio
import base64
import json
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gangline.api.crd import crd_manifests
from integration.apiserver.conftest import Kubectl
from integration.apiserver.test_server_protocol import Http, http
from kubernetes_proto import encode_body, needs_sources

__all__ = ["http"]

PROTOBUF = "application/vnd.kubernetes.protobuf"
AS_CLIENT_GO = {"Content_Type": PROTOBUF, "Accept": f"{PROTOBUF},application/json"}
WATCH = f"{PROTOBUF};stream=watch,application/json;stream=watch"
METADATA = (
    f"{PROTOBUF};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,"
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
)
SCHEDULER = (
    "/api/v1/namespaces", "/api/v1/nodes", "/api/v1/persistentvolumeclaims",
    "/api/v1/persistentvolumes", "/api/v1/pods", "/api/v1/replicationcontrollers",
    "/api/v1/services", "/apis/apps/v1/replicasets", "/apis/apps/v1/statefulsets",
    "/apis/policy/v1/poddisruptionbudgets", "/apis/resource.k8s.io/v1/deviceclasses",
    "/apis/resource.k8s.io/v1/devicetaintrules",
    "/apis/resource.k8s.io/v1/resourceclaims", "/apis/resource.k8s.io/v1/resourceslices",
    "/apis/storage.k8s.io/v1/csidrivers", "/apis/storage.k8s.io/v1/csinodes",
    "/apis/storage.k8s.io/v1/csistoragecapacities", "/apis/storage.k8s.io/v1/storageclasses",
    "/apis/storage.k8s.io/v1/volumeattachments",
)  # fmt: skip
"""What the caches of kube-scheduler 1.37 list and watch."""
CONTROLLERS = (
    "/api/v1/configmaps", "/api/v1/endpoints", "/api/v1/limitranges", "/api/v1/podtemplates",
    "/api/v1/resourcequotas", "/api/v1/secrets", "/api/v1/serviceaccounts",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/apps/v1/controllerrevisions", "/apis/apps/v1/daemonsets", "/apis/apps/v1/deployments",
    "/apis/autoscaling/v2/horizontalpodautoscalers", "/apis/batch/v1/cronjobs",
    "/apis/batch/v1/jobs", "/apis/certificates.k8s.io/v1/certificatesigningrequests",
    "/apis/coordination.k8s.io/v1/leases", "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/networking.k8s.io/v1/ingresses", "/apis/networking.k8s.io/v1/ipaddresses",
    "/apis/networking.k8s.io/v1/networkpolicies", "/apis/networking.k8s.io/v1/servicecidrs",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/resource.k8s.io/v1/resourceclaimtemplates",
    "/apis/storage.k8s.io/v1/volumeattributesclasses",
)  # fmt: skip
"""What those of kube-controller-manager 1.36 list and watch beside that."""


def signing_request(organization: str = "team") -> str:
    """Return a certificate request in the form of the API."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "somebody"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
        ]
    )
    made = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()


STORAGE, RESOURCE, NETWORK = "storage.k8s.io/v1", "resource.k8s.io/v1", "networking.k8s.io/v1"
ADMISSION = "admissionregistration.k8s.io/v1"
REQUESTS = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}
RULES = [{"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"],
          "resources": ["deployments"]}]  # fmt: skip
OBJECTS: list[tuple[str, str, str, dict[str, Any]]] = [
    (STORAGE, "CSIDriver", "csidrivers", {"spec": {"podInfoOnMount": True}}),
    (STORAGE, "CSINode", "csinodes",
     {"spec": {"drivers": [{"name": "csi.example.com", "nodeID": "n1", "topologyKeys": ["zone"],
                            "allocatable": {"count": 8}}]}}),
    (STORAGE, "CSIStorageCapacity", "csistoragecapacities",
     {"storageClassName": "fast", "capacity": "10Gi",
      "nodeTopology": {"matchLabels": {"zone": "a"}}}),
    (STORAGE, "VolumeAttachment", "volumeattachments",
     {"spec": {"attacher": "csi.example.com", "nodeName": "n1",
               "source": {"persistentVolumeName": "disk"}}}),
    (STORAGE, "VolumeAttributesClass", "volumeattributesclasses",
     {"driverName": "csi.example.com", "parameters": {"iops": "3000"}}),
    (RESOURCE, "DeviceClass", "deviceclasses",
     {"spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.example.com'"}}]}}),
    (RESOURCE, "ResourceClaim", "resourceclaims", {"spec": {"devices": REQUESTS}}),
    (RESOURCE, "ResourceClaimTemplate", "resourceclaimtemplates",
     {"spec": {"metadata": {"labels": {"a": "b"}}, "spec": {"devices": REQUESTS}}}),
    (RESOURCE, "ResourceSlice", "resourceslices",
     {"spec": {"driver": "gpu.example.com", "nodeName": "n1",
               "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
               "devices": [{"name": "gpu-0", "attributes": {"index": {"int": 0}},
                            "capacity": {"memory": {"value": "80Gi"}}}]}}),
    (NETWORK, "IPAddress", "ipaddresses",
     {"spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "web"}}}),
    (NETWORK, "ServiceCIDR", "servicecidrs", {"spec": {"cidrs": ["10.0.0.0/24"]}}),
    (ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies",
     {"spec": {"matchConstraints": {"resourceRules": RULES},
               "validations": [{"expression": "object.spec.replicas <= 5"}]}}),
    (ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings",
     {"spec": {"policyName": "odd", "validationActions": ["Deny"]}}),
    ("certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests",
     {"spec": {"request": signing_request(), "signerName": "example.com/own",
               "usages": ["client auth"]}}),
]  # fmt: skip
NAMESPACED = ("CSIStorageCapacity", "ResourceClaim", "ResourceClaimTemplate")


def subset(part: Any, of: Any) -> bool:
    """Return True if every field of ``part`` is in ``of``; the server adds defaults."""
    if isinstance(part, dict):
        return all(name in of and subset(value, of[name]) for name, value in part.items())
    if isinstance(part, list):
        return len(part) == len(of) and all(map(subset, part, of))
    return bool(part == of)


def path_of(api_version: str, kind: str, plural: str) -> str:
    where = "/namespaces/default" if kind in NAMESPACED else ""
    return f"/apis/{api_version}{where}/{plural}"


@needs_sources
async def test_kinds_are_written_in_protobuf_and_read_back(http: Http) -> None:
    for api_version, kind, plural, content in OBJECTS:
        name = "10.0.0.9" if kind == "IPAddress" else "odd"
        obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **content}
        path = path_of(api_version, kind, plural)
        status, created = await http("POST", path, encode_body(obj), **AS_CLIENT_GO)
        assert (status, subset(obj, created)) == (201, True), created
        if api_version not in (RESOURCE, ADMISSION):  # which this cluster acts on
            assert "none of its components acts" in http.headers.get("Warning", "")
        created["metadata"]["labels"] = {"seen": "yes"}
        created["metadata"].pop("managedFields")
        body = encode_body(created)
        status, updated = await http("PUT", f"{path}/{name}", body, **AS_CLIENT_GO)
        assert (status, updated["metadata"]["labels"]) == (200, {"seen": "yes"}), updated
        _, listed = await http("GET", path, None, **AS_CLIENT_GO)
        assert listed["kind"] == f"{kind}List"
        assert [item["metadata"]["name"] for item in listed["items"]] == [name]
        status, _ = await http("DELETE", f"{path}/{name}", None)
        assert status == 200


async def test_caches_of_schedulers_and_controllers_fill(http: Http) -> None:
    for path in SCHEDULER + CONTROLLERS:
        status, listed = await http("GET", f"{path}?limit=500&resourceVersion=0", **AS_CLIENT_GO)
        assert status == 200, listed
        assert "json" in http.headers["Content-Type"]
        status, metadata = await http("GET", path, Accept=METADATA)
        assert (status, metadata["kind"]) == (200, "PartialObjectMetadataList")
        assert await initial_events_end(http, path), path


async def initial_events_end(http: Http, path: str) -> bool:
    options = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&timeoutSeconds=60"
    headers = {"Authorization": f"Bearer {http.token}", "Accept": WATCH}
    url = f"{http.url}{path}?{options}&resourceVersionMatch=NotOlderThan"
    async with http.session.get(url, headers=headers) as stream, asyncio.timeout(30):
        assert stream.status == 200
        async for line in stream.content:
            event = json.loads(line)
            notes = event["object"]["metadata"].get("annotations", {})
            if event["type"] == "BOOKMARK" and notes.get("k8s.io/initial-events-end") == "true":
                return True
    return False


async def test_requester_of_a_certificate_is_its_user(http: Http) -> None:
    path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    spec = {"request": signing_request(), "signerName": "example.com/own", "usages": ["any"],
            "username": "system:admin", "groups": ["system:masters", "odd"]}  # fmt: skip
    status, made = await http("POST", path, {"metadata": {"name": "own"}, "spec": spec})
    assert status == 201, made
    assert made["spec"]["username"] != "system:admin"
    assert "odd" not in made["spec"]["groups"]
    changed = {**made, "spec": {**made["spec"], "username": "other"}}
    _, kept = await http("PUT", f"{path}/own", changed)
    assert kept["spec"] == made["spec"]
    spec["signerName"] = "kubernetes.io/kube-apiserver-client"
    spec["request"] = signing_request("system:masters")
    status, _ = await http("POST", path, {"metadata": {"name": "masters"}, "spec": spec})
    assert status == 403


async def test_kubectl_discovers_and_explains_the_kinds(kubectl: Kubectl) -> None:
    listed = (await kubectl("api-resources --no-headers -o name")).splitlines()
    assert {f"{plural}.{version.partition('/')[0]}" for version, _, plural, _ in OBJECTS} <= {
        *listed
    }
    explained = await kubectl("explain resourceslices.spec.devices.attributes")
    assert "version" in explained
    explained = await kubectl("explain csinodes.spec.drivers")
    assert "nodeID" in explained
    assert "required" in explained


async def test_queue_is_open_as_soon_as_it_exists(http: Http) -> None:
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    status, _ = await http("POST", definitions, crd_manifests()["scheduling.volcano.sh_queues"])
    assert status == 201
    path = "/apis/scheduling.volcano.sh/v1beta1/queues"
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}
    body = {**queue, "metadata": {"name": "default"}, "status": {"state": "Closed"}}
    await http("POST", path, body)
    _, stored = await http("GET", f"{path}/default")
    assert stored["status"] == {"state": "Open"}


async def test_pods_of_a_runtime_class_have_what_it_adds(http: Http) -> None:
    """Its overhead and the constraints of its nodes; a class that does not exist is an error."""
    spec = {"runtimeClassName": "sandbox", "containers": [{"name": "c", "image": "i"}]}
    pods, body = "/api/v1/namespaces/default/pods", {"metadata": {"name": "p"}, "spec": spec}
    status, answer = await http("POST", pods, body)
    assert (status, answer["message"]) == (
        403,
        'pods "p" is forbidden: pod rejected: RuntimeClass "sandbox" not found',
    )
    toleration = {"key": "sandbox", "operator": "Exists"}
    sandbox = {
        "metadata": {"name": "sandbox"},
        "handler": "kata",
        "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {"nodeSelector": {"kata": "yes"}, "tolerations": [toleration]},
    }
    assert (await http("POST", "/apis/node.k8s.io/v1/runtimeclasses", sandbox))[0] == 201
    other = {**body, "spec": {**spec, "nodeSelector": {"kata": "no"}}}
    assert (await http("POST", pods, other))[0] == 403
    assert (await http("POST", pods, {**body, "spec": {**spec, "overhead": {"cpu": "1"}}}))[
        0
    ] == 403
    status, made = await http("POST", pods, body)
    assert (status, made["spec"]["overhead"]) == (201, {"cpu": "250m"})
    assert made["spec"]["nodeSelector"] == {"kata": "yes"}
    assert toleration in made["spec"]["tolerations"]


async def test_api_servers_of_others_find_whom_to_trust(http: Http) -> None:
    namespace = "kube-system"
    name = "extension-apiserver-authentication"
    _, config = await http("GET", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    authorities = [config["data"][f"{of}client-ca-file"] for of in ("", "requestheader-")]
    names = [x509.load_pem_x509_certificate(one.encode()).public_key() for one in authorities]
    assert names[0] != names[1]  # a client of this server is no proxy
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    assert (await http("GET", f"{rbac}/roles/{name}-reader"))[0] == 200
