"""EndpointSlices: mirrors of Endpoints objects, for clients that read only slices.

There is one slice for each set of ports. Its name follows from the name of the Endpoints object, so
that a repeated creation fails with AlreadyExists and adds no duplicate.
"""

from gangline.api.core.core import Endpoints, EndpointSlice
from gangline.api.core.service import Endpoint, EndpointAddress, EndpointConditions, EndpointSubset
from gangline.api.meta.objects import ObjectMeta, OwnerReference

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslicemirroring-controller.k8s.io"


def mirror_endpoints(endpoints: Endpoints) -> dict[str, EndpointSlice]:
    """Return the slices of ``endpoints`` by name; without a subset there is one empty slice."""
    subsets = endpoints.subsets or [EndpointSubset()]
    named = ((f"{endpoints.metadata.name}-{number}", each) for number, each in enumerate(subsets))
    return {name: _slice(name, endpoints, subset) for name, subset in named}


def is_equivalent_slice(one: EndpointSlice, other: EndpointSlice) -> bool:
    """True if two slices have equal labels, addresses and ports."""
    return _content(one) == _content(other)


def _content(of: EndpointSlice) -> tuple[object, ...]:
    return of.metadata.labels, of.address_type, of.endpoints, of.ports


def _slice(name: str, endpoints: Endpoints, subset: EndpointSubset) -> EndpointSlice:
    meta = endpoints.metadata
    owner = OwnerReference(
        api_version="v1",
        kind="Endpoints",
        name=meta.name,
        uid=meta.uid,
        controller=True,
        block_owner_deletion=True,
    )
    addresses = [(each, True) for each in subset.addresses]
    addresses += [(each, False) for each in subset.not_ready_addresses]
    every = [each.ip for each, _ in addresses]
    return EndpointSlice(
        metadata=ObjectMeta(
            name=name,
            namespace=meta.namespace,
            labels={**meta.labels, SERVICE_NAME_LABEL: meta.name, MANAGED_BY_LABEL: MANAGER},
            owner_references=[owner],
        ),
        address_type="IPv6" if every and ":" in every[0] else "IPv4",
        endpoints=[_endpoint(each, ready) for each, ready in addresses],
        ports=subset.ports,
    )


def _endpoint(address: EndpointAddress, ready: bool) -> Endpoint:
    return Endpoint(
        addresses=[address.ip],
        conditions=EndpointConditions(ready=ready, serving=ready, terminating=False),
        hostname=address.hostname,
        node_name=address.node_name,
        target_ref=address.target_ref,
    )
