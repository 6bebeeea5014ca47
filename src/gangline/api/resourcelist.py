"""Sums of resources: what pods ask for, what is free, what is short.

Inside the house an amount is a whole number: thousandths for cpu, whole units (bytes, devices) for
everything else. ``amounts`` reads the wire's quantities into it, ``quantities`` writes it back.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gangline.api.describe import ResourceList
from gangline.api.quantity import Form, Quantity, parse_quantity

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"
GPU = "nvidia.com/gpu"

Amounts = dict[str, int]
"""Thousandths of cpu, whole units of everything else, by resource name."""


class Requirements(Protocol):
    """Anything that says what is asked for: readers of many pods decode less than the full type."""

    @property
    def requests(self) -> Mapping[str, str | int | float]:
        """What is set aside."""

    @property
    def limits(self) -> Mapping[str, str | int | float]:
        """What may be used at most; set aside as well where nothing is requested."""


class RunsInPod(Protocol):
    """A container as far as its resources go."""

    @property
    def resources(self) -> Requirements:
        """What it asks for."""

    @property
    def restart_policy(self) -> str:
        """``Always`` makes an init container a sidecar."""


class AsksForRoom(Protocol):
    """A pod's spec as far as its resources go."""

    @property
    def containers(self) -> Sequence[RunsInPod]:
        """What runs together."""

    @property
    def init_containers(self) -> Sequence[RunsInPod]:
        """What runs before, one after the other."""

    @property
    def overhead(self) -> Mapping[str, str | int | float]:
        """What the sandbox itself needs."""

    @property
    def resources(self) -> Requirements | None:
        """What is asked for the pod as a whole."""


_POD_LEVEL = (CPU, MEMORY, "hugepages-")


def amount(resource: str, written: str | int | float) -> int:
    """Read an amount of one resource, rounded up.

    Raises:
        QuantityError: it is not an amount.
    """
    quantity = parse_quantity(written)
    return quantity.milli if resource == CPU else quantity.value


def amounts(written: Mapping[str, str | int | float]) -> Amounts:
    """Read a list of resources as it is on the wire.

    Raises:
        QuantityError: one of them is not an amount.
    """
    return {name: amount(name, quantity) for name, quantity in written.items()}


def quantity_of(resource: str, count: int) -> str:
    """Write an amount of one resource for the wire, in the customary unit."""
    if resource == CPU:
        return str(Quantity(count * 10**6))
    binary = resource in (MEMORY, EPHEMERAL_STORAGE) or resource.startswith("hugepages-")
    return str(Quantity(count * 10**9, Form.BINARY if binary else Form.DECIMAL))


def quantities(counts: Mapping[str, int]) -> ResourceList:
    """Write a list of resources for the wire."""
    return {name: quantity_of(name, count) for name, count in counts.items()}


def total(lists: Iterable[Mapping[str, int]]) -> Amounts:
    """Add lists up."""
    result: Amounts = {}
    for each in lists:
        for name, count in each.items():
            result[name] = result.get(name, 0) + count
    return result


def times(counts: Mapping[str, int], factor: int) -> Amounts:
    """Multiply a list, such as by a number of replicas."""
    return {name: count * factor for name, count in counts.items()}


def minus(counts: Mapping[str, int], taken: Mapping[str, int]) -> Amounts:
    """What is left (below zero where more was taken than there is)."""
    names = counts.keys() | taken.keys()
    return {name: counts.get(name, 0) - taken.get(name, 0) for name in sorted(names)}


def largest(lists: Iterable[Mapping[str, int]]) -> Amounts:
    """The largest amount of each resource."""
    result: Amounts = {}
    for each in lists:
        for name, count in each.items():
            result[name] = max(result.get(name, 0), count)
    return result


def shortage(wanted: Mapping[str, int], free: Mapping[str, int]) -> Amounts:
    """What is missing for ``wanted`` to fit into ``free``: empty when it fits."""
    return {
        name: count - free.get(name, 0)
        for name, count in wanted.items()
        if count > 0 and count > free.get(name, 0)
    }


def container_request(resources: Requirements) -> Amounts:
    """What is set aside for a container: its requests, and its limits where it has none.

    Raises:
        QuantityError: an amount cannot be read.
    """
    return amounts({**resources.limits, **resources.requests})


def pod_request(spec: AsksForRoom) -> Amounts:
    """What is set aside for a pod while it lives.

    Init containers run one after the other, so the largest counts; those that keep running beside
    the others (``restartPolicy: Always``) count all along from their start; the sandbox comes on
    top. Resources given for the pod as a whole stand for the sum of its containers.

    Raises:
        QuantityError: an amount cannot be read.
    """
    sidecars: Amounts = {}
    peaks: list[Amounts] = []
    for container in spec.init_containers:
        own = _request(container)
        if container.restart_policy == "Always":
            sidecars = total((sidecars, own))
            peaks.append(sidecars)
        else:
            peaks.append(total((sidecars, own)))
    running = total((sidecars, *(_request(container) for container in spec.containers)))
    needed = largest((running, *peaks))
    if spec.resources:
        needed |= {
            name: count
            for name, count in container_request(spec.resources).items()
            if name.startswith(_POD_LEVEL)
        }
    return total((needed, amounts(spec.overhead)))


def pod_request_of(spec: AsksForRoom, resource: str) -> int:
    """What ``pod_request`` says of one resource; for readers of many pods, at a part of its cost.

    Raises:
        QuantityError: an amount of it cannot be read.
    """
    sidecars = peak = 0
    for container in spec.init_containers:
        own = _amount_of(container.resources, resource)
        peak = max(peak, sidecars + own)
        if container.restart_policy == "Always":
            sidecars += own
    running = sidecars + sum(_amount_of(each.resources, resource) for each in spec.containers)
    needed = max(running, peak)
    if spec.resources and resource.startswith(_POD_LEVEL):
        whole = spec.resources
        if resource in whole.requests or resource in whole.limits:
            needed = _amount_of(whole, resource)
    overhead = spec.overhead.get(resource)
    return needed if overhead is None else needed + amount(resource, overhead)


def _amount_of(resources: Requirements, resource: str) -> int:
    """What is set aside of one resource for a container."""
    written = resources.requests.get(resource)
    if written is None:
        written = resources.limits.get(resource)
    return 0 if written is None else amount(resource, written)


def _request(container: RunsInPod) -> Amounts:
    return container_request(container.resources)
