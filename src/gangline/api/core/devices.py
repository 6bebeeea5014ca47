"""Dynamic Resource Allocation (``resource.k8s.io``): claims of devices, classes, and slices.

A driver publishes the devices of a pool in ResourceSlices. A pod names ResourceClaims, or templates
from which claims are created for it. The scheduler writes the devices that a claim gets into its
status. Only the fields that Gangline reads are described: the API server serves these kinds with
Kubernetes' complete schemas.
"""

from datetime import datetime

import msgspec

from gangline.api.core.affinity import NodeSelector
from gangline.api.core.pod import Pod
from gangline.api.meta.field_doc import FreeForm, ResourceList
from gangline.api.meta.objects import Object, ObjectMeta, Wire
from gangline.api.meta.resource import Resource

GROUP = "resource.k8s.io"
FINALIZER = "resource.kubernetes.io/delete-protection"
"""Finalizer of allocated claims: they stay until no pod uses them."""
POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim that was created for a pod: the pod's name for it."""
MAX_CONSUMERS = 256
"""Kubernetes' limit for ``status.reservedFor``."""
MAX_DEVICES = 32
"""Kubernetes' limit for the devices of one claim."""


class DeviceToleration(Wire):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None
    """Seconds until pods that use the device are evicted; None: never."""


class CELDeviceSelector(Wire):
    expression: str = ""


class DeviceSelector(Wire):
    cel: CELDeviceSelector | None = None


class CapacityRequirements(Wire):
    requests: ResourceList = {}


class RequestedDevices(Wire):
    """Which devices, and how many."""

    device_class_name: str = ""
    selectors: list[DeviceSelector] = []
    allocation_mode: str = "ExactCount"
    count: int = 1
    tolerations: list[DeviceToleration] = []
    capacity: CapacityRequirements | None = None


class ExactDeviceRequest(RequestedDevices):
    admin_access: bool = False


class DeviceSubRequest(RequestedDevices):
    """One alternative of a request."""

    name: str = ""


class DeviceRequest(Wire):
    """Devices of one kind: exactly these, or the first available of some alternatives."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: list[DeviceSubRequest] = []


class DeviceConstraint(Wire):
    """An attribute in which devices must be equal, or all different."""

    requests: list[str] = []
    match_attribute: str = ""
    distinct_attribute: str = ""


class OpaqueDeviceConfiguration(Wire):
    driver: str = ""
    parameters: FreeForm = {}


class DeviceConfiguration(Wire):
    """What a driver gets to know about the devices of a class."""

    opaque: OpaqueDeviceConfiguration | None = None


class DeviceClaimConfiguration(DeviceConfiguration):
    """The same for the devices of some requests; without names, of all."""

    requests: list[str] = []


class DeviceClaim(Wire):
    requests: list[DeviceRequest] = []
    constraints: list[DeviceConstraint] = []
    config: list[DeviceClaimConfiguration] = []


class ResourceClaimSpec(Wire):
    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(Wire):
    """One device of a claim."""

    request: str = ""
    """Name of the request, or ``request/alternative``."""
    driver: str = ""
    pool: str = ""
    device: str = ""
    tolerations: list[DeviceToleration] = []


class DeviceAllocationResult(Wire):
    results: list[AllocatedDevice] = []


class AllocationResult(Wire):
    devices: DeviceAllocationResult = DeviceAllocationResult()
    node_selector: NodeSelector | None = None


class ClaimConsumer(Wire):
    """An object that uses a claim, mostly a pod."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Wire):
    allocation: AllocationResult | None = None
    reserved_for: list[ClaimConsumer] = []


class ResourceClaim(Object):
    """Devices that pods use together."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    def is_for(self, pod: Pod) -> bool:
        """Return whether the claim was created for a pod."""
        owner = self.metadata.controller
        return owner is not None and owner.uid == pod.metadata.uid


class ResourceClaimTemplateSpec(Wire):
    metadata: ObjectMeta = ObjectMeta()
    spec: FreeForm = {}


class ResourceClaimTemplate(Object):
    """What claims that are created for pods look like."""

    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class DeviceClassSpec(Wire):
    selectors: list[DeviceSelector] = []
    config: list[DeviceConfiguration] = []
    extended_resource_name: str = ""


class DeviceClass(Object):
    """Which devices a request may get, and how a driver configures them."""

    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceTaint(Wire):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: datetime | None = None


class DeviceAttribute(Wire):
    """The value of an attribute: one field is set."""

    int_: int | None = msgspec.field(name="int", default=None)
    bool_: bool | None = msgspec.field(name="bool", default=None)
    string: str | None = None
    version: str | None = None
    ints: list[int] = []
    bools: list[bool] = []
    strings: list[str] = []
    versions: list[str] = []


class DeviceCounterConsumption(Wire):
    """What the device takes from its siblings."""

    counter_set: str = ""


class DeviceCapacity(Wire):
    value: str | int | float = 0


class NodeSelection(Wire):
    """Which nodes reach the devices: one field is set."""

    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False


class Device(NodeSelection):
    """A device of a pool. It selects nodes only if its slice leaves that to its devices."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] = {}
    capacity: dict[str, DeviceCapacity] = {}
    taints: list[DeviceTaint] = []
    consumes_counters: list[DeviceCounterConsumption] = []
    binding_conditions: list[str] = []
    allow_multiple_allocations: bool = False


class ResourcePool(Wire):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(NodeSelection):
    driver: str = ""
    pool: ResourcePool = ResourcePool()
    per_device_node_selection: bool = False
    devices: list[Device] = []


class ResourceSlice(Object):
    """Devices of a pool, as their driver publishes them."""

    spec: ResourceSliceSpec = ResourceSliceSpec()


class DeviceTaintSelector(Wire):
    """Devices by driver, pool and name; an empty field selects all."""

    driver: str = ""
    pool: str = ""
    device: str = ""


class DeviceTaintRuleSpec(Wire):
    device_selector: DeviceTaintSelector | None = None
    """None: no device."""
    taint: DeviceTaint = DeviceTaint()


class DeviceTaintRule(Object):
    """A taint of all devices that a selector matches, besides those in slices."""

    spec: DeviceTaintRuleSpec = DeviceTaintRuleSpec()


DEVICE_CLASSES = Resource(
    DeviceClass, GROUP, "v1", "deviceclasses", "DeviceClass", namespaced=False
)
RESOURCE_CLAIMS = Resource(ResourceClaim, GROUP, "v1", "resourceclaims", "ResourceClaim")
RESOURCE_CLAIM_TEMPLATES = Resource(
    ResourceClaimTemplate, GROUP, "v1", "resourceclaimtemplates", "ResourceClaimTemplate"
)
RESOURCE_SLICES = Resource(
    ResourceSlice, GROUP, "v1", "resourceslices", "ResourceSlice", namespaced=False
)
DEVICE_TAINT_RULES = tuple(
    Resource(
        DeviceTaintRule, GROUP, version, "devicetaintrules", "DeviceTaintRule", namespaced=False
    )
    for version in ("v1", "v1beta2", "v1alpha3")
)
"""One resource per version, the newest first: a cluster serves one of them, or none."""
