"""Conversion of the kinds of Dynamic Resource Allocation into values of the scheduler."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gangline.api.core import devices as api
from gangline.api.quantity import Quantity, QuantityError, parse_quantity
from gangline.scheduler.cache.convert_placement import node_terms
from gangline.scheduler.plugins.device_selectors import SelectableDevice, Version, domains
from gangline.scheduler.plugins.devices import (
    UNCREATED,
    AttributeConstraint,
    DeviceClaimInfo,
    DeviceFilter,
    DeviceInfo,
    DeviceRequestInfo,
    DeviceTaintRuleInfo,
    RequestOption,
    SliceInfo,
)
from gangline.scheduler.types import (
    ClaimAllocation,
    NodeName,
    TaintInfo,
    TolerationInfo,
)
from gangline.scheduler.wire import LeanPod

_MODES = ("", "ExactCount", "All")


def device_claims(pod: LeanPod) -> tuple[str, ...]:
    """Return the keys of a pod's claims; one that was not created yet gets a name that no claim can
    have.
    """
    created = {
        status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses
    }
    names = {
        claim.resource_claim_name or created.get(claim.name, f"{UNCREATED}{claim.name}")
        for claim in pod.spec.resource_claims
    }
    # The controller creates no claim that the pod does not need.
    return tuple(f"{pod.metadata.namespace}/{name}" for name in sorted(names) if name)


def device_claim_info(claim: api.ResourceClaim) -> DeviceClaimInfo:
    devices, metadata = claim.spec.devices, claim.metadata
    unsupported = [why for request in devices.requests if (why := _unsupported(request))]
    unsupported += [
        "a constraint without matchAttribute or distinctAttribute"
        for constraint in devices.constraints
        if not (constraint.match_attribute or constraint.distinct_attribute)
    ]
    owner = metadata.controller
    is_generated = api.POD_CLAIM_ANNOTATION in metadata.annotations
    return DeviceClaimInfo(
        key=f"{metadata.namespace}/{metadata.name}",
        uid=metadata.uid,
        requests=tuple(map(_request, devices.requests)),
        constraints=tuple(
            AttributeConstraint(
                constraint.match_attribute or constraint.distinct_attribute,
                frozenset(constraint.requests),
                distinct=not constraint.match_attribute,
            )
            for constraint in devices.constraints
        ),
        owner=owner.uid if owner is not None and is_generated else "",
        allocation=_allocation(claim.status.allocation),
        consumers=tuple(
            (f"{metadata.namespace}/{user.name}" if user.resource == "pods" else "", user.uid)
            for user in claim.status.reserved_for
        ),
        is_terminating=metadata.deletion_timestamp is not None,
        unsupported=unsupported[0] if unsupported else "",
    )


def _unsupported(request: api.DeviceRequest) -> str:
    options: Sequence[api.RequestedDevices] = request.first_available
    if request.exactly is not None:
        options = [request.exactly]
    if not options:
        return f"request {request.name!r} has neither exactly nor firstAvailable"
    for option in options:
        if option.capacity is not None:
            return f"request {request.name!r} has capacity, which divides devices"
        if option.allocation_mode not in _MODES:
            return f"request {request.name!r} has allocationMode {option.allocation_mode!r}"
        if any(selector.cel is None for selector in option.selectors):
            return f"request {request.name!r} has a selector without cel"
    return ""


def _request(request: api.DeviceRequest) -> DeviceRequestInfo:
    if request.exactly is not None:
        return DeviceRequestInfo(request.name, (_option(request.name, request.exactly),))
    return DeviceRequestInfo(
        request.name,
        tuple(_option(f"{request.name}/{sub.name}", sub) for sub in request.first_available),
    )


def _option(name: str, option: api.RequestedDevices) -> RequestOption:
    devices = DeviceFilter(
        option.device_class_name,
        _expressions(option.selectors),
        tuple(
            TolerationInfo(one.key, one.operator, one.value, one.effect)
            for one in option.tolerations
        ),
    )
    return RequestOption(
        name,
        devices,
        0 if option.allocation_mode == "All" else option.count,
        is_admin=isinstance(option, api.ExactDeviceRequest) and option.admin_access,
    )


def _expressions(selectors: Iterable[api.DeviceSelector]) -> tuple[str, ...]:
    return tuple(selector.cel.expression for selector in selectors if selector.cel is not None)


def _allocation(result: api.AllocationResult | None) -> ClaimAllocation | None:
    if result is None:
        return None
    devices = tuple(
        (one.request, (one.driver, one.pool, one.device)) for one in result.devices.results
    )
    selector = result.node_selector
    return ClaimAllocation(devices, None if selector is None else node_terms(selector))


def device_class_info(device_class: api.DeviceClass) -> tuple[str, ...]:
    """Return the selectors of a class."""
    return _expressions(device_class.spec.selectors)


def slice_info(published: api.ResourceSlice) -> SliceInfo:
    spec = published.spec
    pool = (spec.driver, spec.pool.name)
    devices = tuple(
        _device(device, pool, device if spec.per_device_node_selection else spec)
        for device in spec.devices
    )
    return SliceInfo(pool, spec.pool.generation, spec.pool.resource_slice_count, devices)


def _device(device: api.Device, pool: tuple[str, str], selection: api.NodeSelection) -> DeviceInfo:
    driver, selector = pool[0], selection.node_selector
    values = {name: _value(attribute) for name, attribute in device.attributes.items()}
    amounts = {name: _quantity(capacity.value) for name, capacity in device.capacity.items()}
    terms = () if selector is None else node_terms(selector)
    return DeviceInfo(
        id=(*pool, device.name),
        view=SelectableDevice(driver, _by_domain(values, driver), _by_domain(amounts, driver)),
        node=NodeName(selection.node_name) if selection.node_name else None,
        terms=None if selection.all_nodes else terms,
        taints=tuple(_taint(taint) for taint in device.taints),
        unsupported=_unsupported_device(device),
    )


def _unsupported_device(device: api.Device) -> str:
    if device.consumes_counters:
        return "are parts of others (consumesCounters)"
    if device.allow_multiple_allocations:
        return "are shared by claims (allowMultipleAllocations)"
    return "need a driver's consent (bindingConditions)" if device.binding_conditions else ""


def _by_domain(values: Mapping[str, Any], driver: str) -> Mapping[str, Mapping[str, Any]]:
    return domains({name: value for name, value in values.items() if value is not None}, driver)


def _value(attribute: api.DeviceAttribute) -> object:
    """Return the value of an attribute; None: it has none that is known."""
    for single in (attribute.int_, attribute.bool_, attribute.string):
        if single is not None:
            return single
    if attribute.version is not None:
        return Version.parse(attribute.version)
    if attribute.versions:
        return [Version.parse(version) for version in attribute.versions]
    return attribute.ints or attribute.bools or attribute.strings or None


def _quantity(written: str | int | float) -> Quantity | None:
    try:
        return parse_quantity(written)
    except QuantityError:
        return None


def _taint(taint: api.DeviceTaint) -> TaintInfo:
    return TaintInfo(taint.key, taint.value, taint.effect)


def taint_rule_info(rule: api.DeviceTaintRule) -> DeviceTaintRuleInfo | None:
    """Convert a rule; None: it selects no device."""
    selector = rule.spec.device_selector
    if selector is None:
        return None
    return DeviceTaintRuleInfo(
        _taint(rule.spec.taint), selector.driver, selector.pool, selector.device
    )
