"""Resource arithmetic: requests of pods, sums, shortages.

Inside Gangline an amount is an integer: thousandths for cpu, whole units (bytes, devices) for
everything else. One pair of functions here converts from and to wire quantities.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gangline.api.meta.field_doc import ResourceList
from gangline.api.quantity import Quantity, QuantityFormat, parse_quantity

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"
GPU = "nvidia.com/gpu"


def is_extended_resource(name: str) -> bool:
    """Return whether a resource is not one of Kubernetes' own: its name has another domain."""
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


ResourceAmounts = dict[str, int]
"""Thousandths of cpu, whole units of everything else, by resource name."""


class HasRequirements(Protocol):
    """The part of ResourceRequirements that is read here: informers may decode less than the full
    type.
    """

    @property
    def requests(self) -> Mapping[str, str | int | float]:
        """Reserved quantities."""

    @property
    def limits(self) -> Mapping[str, str | int | float]:
        """Maximum quantities; also reserved if nothing is requested."""


class HasContainerResources(Protocol):
    """The part of a container that is read here."""

    @property
    def resources(self) -> HasRequirements:
        """Requests and limits."""

    @property
    def restart_policy(self) -> str:
        """``Always`` makes an init container a sidecar."""


class HasPodRequests(Protocol):
    """The part of a pod specification that is read here."""

    @property
    def containers(self) -> Sequence[HasContainerResources]:
        """Containers, which run concurrently."""

    @property
    def init_containers(self) -> Sequence[HasContainerResources]:
        """Init containers, which run one after the other."""

    @property
    def overhead(self) -> Mapping[str, str | int | float]:
        """Resources of the sandbox."""

    @property
    def resources(self) -> HasRequirements | None:
        """Requests and limits of the pod as a unit; None if only containers have them."""


_POD_LEVEL_RESOURCES = (CPU, MEMORY, "hugepages-")


def parse_resource(resource: str, written: str | int | float) -> int:
    """Parse a quantity of one resource, rounded up. Raises QuantityError: the text is not a
    quantity.
    """
    quantity = parse_quantity(written)
    return quantity.milli if resource == CPU else quantity.value


def parse_resources(written: Mapping[str, str | int | float]) -> ResourceAmounts:
    """Parse a resource list from its wire form. Raises QuantityError: one of the values is not a
    quantity.
    """
    return {name: parse_resource(name, quantity) for name, quantity in written.items()}


def format_resource(resource: str, count: int) -> str:
    """Format an amount of one resource for the wire, in the customary unit."""
    if resource == CPU:
        return str(Quantity(count * 10**6))
    binary = resource in (MEMORY, EPHEMERAL_STORAGE) or resource.startswith("hugepages-")
    return str(Quantity(count * 10**9, QuantityFormat.BINARY if binary else QuantityFormat.DECIMAL))


def format_resources(counts: Mapping[str, int]) -> ResourceList:
    return {name: format_resource(name, count) for name, count in counts.items()}


def sum_resources(lists: Iterable[Mapping[str, int]]) -> ResourceAmounts:
    result: ResourceAmounts = {}
    for list_ in lists:
        for name, count in list_.items():
            result[name] = result.get(name, 0) + count
    return result


def max_resources(lists: Iterable[Mapping[str, int]]) -> ResourceAmounts:
    result: ResourceAmounts = {}
    for list_ in lists:
        for name, count in list_.items():
            result[name] = max(result.get(name, 0), count)
    return result


def largest_quantities(lists: Iterable[Mapping[str, str | int | float]]) -> ResourceList:
    """Return the largest of each resource's quantities, as written. Raises QuantityError: a
    quantity cannot be parsed.
    """
    result: ResourceList = {}
    for list_ in lists:
        for name, written in list_.items():
            if name not in result or parse_quantity(written) > parse_quantity(result[name]):
                result[name] = written
    return result


def container_request(resources: HasRequirements) -> ResourceAmounts:
    """Return what is reserved for a container: its requests, and its limits where it has none.
    Raises QuantityError: a quantity cannot be parsed.
    """
    return parse_resources({**resources.limits, **resources.requests})


def pod_request(spec: HasPodRequests) -> ResourceAmounts:
    """Return what is reserved for a pod.

    Init containers run one after the other, so the largest counts. Sidecars (init containers with
    ``restartPolicy: Always``) count from their start on. The sandbox's overhead is added. Pod-level
    resources replace the sum of the containers. Raises QuantityError: a quantity cannot be parsed.
    """
    sidecars: ResourceAmounts = {}
    peaks: list[ResourceAmounts] = []
    for container in spec.init_containers:
        own = container_request(container.resources)
        if container.restart_policy == "Always":
            sidecars = sum_resources((sidecars, own))
            peaks.append(sidecars)
        else:
            peaks.append(sum_resources((sidecars, own)))
    requests = (container_request(container.resources) for container in spec.containers)
    needed = max_resources((sum_resources((sidecars, *requests)), *peaks))
    if spec.resources:
        needed |= {
            name: count
            for name, count in container_request(spec.resources).items()
            if name.startswith(_POD_LEVEL_RESOURCES)
        }
    return sum_resources((needed, parse_resources(spec.overhead)))


def pod_request_for(spec: HasPodRequests, resource: str) -> int:
    """Return one resource of ``pod_request``, at a fraction of the cost. Raises QuantityError: a
    quantity of the resource cannot be parsed.
    """
    sidecars = peak = 0
    for container in spec.init_containers:
        own = _amount_of(container.resources, resource)
        peak = max(peak, sidecars + own)
        if container.restart_policy == "Always":
            sidecars += own
    running = sidecars
    for container in spec.containers:
        running += _amount_of(container.resources, resource)
    needed = max(running, peak)
    if spec.resources and resource.startswith(_POD_LEVEL_RESOURCES):
        whole = spec.resources
        if resource in whole.requests or resource in whole.limits:
            needed = _amount_of(whole, resource)
    overhead = spec.overhead.get(resource)
    return needed if overhead is None else needed + parse_resource(resource, overhead)


def _amount_of(resources: HasRequirements, resource: str) -> int:
    written = resources.requests.get(resource)
    if written is None:
        written = resources.limits.get(resource)
    return 0 if written is None else parse_resource(resource, written)
