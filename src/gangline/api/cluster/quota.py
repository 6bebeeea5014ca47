"""ResourceQuota: limits of the objects and of the resources of one namespace."""

from typing import Annotated

from gangline.api.meta.field_doc import ResourceList, doc
from gangline.api.meta.objects import Object, Wire


class ScopedSelectorRequirement(Wire):
    """A scope, and for PriorityClass the names of classes."""

    scope_name: Annotated[
        str,
        doc(
            "Terminating, NotTerminating, BestEffort, NotBestEffort, PriorityClass or "
            "CrossNamespacePodAffinity."
        ),
    ] = ""
    operator: Annotated[str, doc("In, NotIn, Exists or DoesNotExist.")] = ""
    values: Annotated[list[str], doc("Names of priority classes, for In and NotIn.")] = []


class ScopeSelector(Wire):
    """Scopes with operators."""

    match_expressions: Annotated[
        list[ScopedSelectorRequirement], doc("Scopes; all of them must match.")
    ] = []


class ResourceQuotaSpec(Wire):
    """The limits, and the pods that they apply to."""

    hard: Annotated[
        ResourceList,
        doc("Limits by name: count/RESOURCE.GROUP, pods, services, requests.cpu, ..."),
    ] = {}
    scopes: Annotated[list[str], doc("Scopes of pods; all of them must match.")] = []
    scope_selector: Annotated[
        ScopeSelector | None, doc("Scopes of pods with operators; all must match.")
    ] = None


class ResourceQuotaStatus(Wire):
    """The limits in force and what is used of them."""

    hard: Annotated[ResourceList, doc("Limits in force.")] = {}
    used: Annotated[ResourceList, doc("Present use of each limit.")] = {}


class ResourceQuota(Object):
    """Limits of the objects of a namespace and of the resources of its pods."""

    spec: Annotated[ResourceQuotaSpec, doc("The limits.")] = ResourceQuotaSpec()
    status: Annotated[ResourceQuotaStatus, doc("Observed state.")] = ResourceQuotaStatus()
