"""Built-in admission: rules that depend on other objects than the written one.

A namespace must exist and must not be terminating. A pod gets the priority of its class. A service
gets a cluster IP and node ports, a claim gets the default storage class, and a
CustomResourceDefinition gets its names and conditions.
"""

import ipaddress
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from gangline.api.cluster import workload
from gangline.api.meta import field_causes
from gangline.api.meta.json_objects import objects_in, subobject
from gangline.api.meta.objects import StatusCause
from gangline.api.quantity import quantity_or_none
from gangline.local.apiserver.admission.limit_ranges import (
    apply_limit_ranges,
    violated_bounds,
)
from gangline.local.apiserver.core.errors import (
    StatusError,
    forbidden_object,
    invalid,
    not_found,
    status_error,
)
from gangline.local.apiserver.core.negotiation import read_json
from gangline.local.apiserver.core.prepare import SUFFIX_LETTERS, format_timestamp
from gangline.local.apiserver.core.registry import Json, Registry, ServedKind
from gangline.local.apiserver.crds import complete_definition, crd_causes, crd_update_causes
from gangline.local.apiserver.machinery.defaults import apply_priority, initial_pod_status
from gangline.local.apiserver.machinery.schema.nodes import copy_json
from gangline.local.apiserver.storage.store import ObjectStore

DEFAULT_CLASS_ANNOTATION = "storageclass.kubernetes.io/is-default-class"
NODE_PORTS = range(30000, 32768)
NODE_PORT_TYPES = ("NodePort", "LoadBalancer")
API_ACCESS_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
PROTECTED_NAMESPACES = ("default", "kube-system", "kube-public")


class BuiltinAdmission:
    """The built-in admission rules over the objects of a store."""

    def __init__(self, store: ObjectStore, registry: Registry, service_cidr: str) -> None:
        self._store = store
        self._registry = registry
        self._services = ipaddress.ip_network(service_cidr)
        self._next_address = 0

    def check_namespace(self, kind: ServedKind, name: str, namespace: str) -> None:
        """Refuse a new object in a namespace that does not exist or is terminating. Raises
        StatusError: 404 or 403.
        """
        record = self._store.cache("namespaces.").latest(namespace)
        if record is None:
            raise not_found("namespaces", "", namespace)
        if record.fields.get("status.phase") == "Terminating":
            raise _terminating(kind, name, namespace)

    def admit_creation(self, kind: ServedKind, obj: Json) -> None:
        """Complete a new object in place, after its defaults are set and before it is validated.
        Raises StatusError: a rule forbids the object.
        """
        if kind.custom:
            if kind.resets_status:
                obj.pop("status", None)
                # Kubernetes sets the defaults of a status when it reads the stored object.
                kind.schema.apply_defaults(obj)
            return
        if kind.plural == "customresourcedefinitions":
            obj.pop("status", None)
            check_crd(obj)
            complete_definition(self._registry, obj, obj["metadata"]["creationTimestamp"])
            return
        if not kind.group and kind.kind == "Pod":
            self._apply_service_account(obj)
            self._apply_runtime_class(obj)
            self._assign_priority(kind, obj)
            self._apply_limit_ranges(kind, obj)
        elif (kind.group, kind.kind) == (workload.GROUP, "PodGroup"):
            self._check_workload(obj)
            self._assign_priority(kind, obj)
            obj.get("spec", {}).pop("preemptionPolicy", None)
        elif not kind.group and kind.kind == "Service":
            self._allocate_cluster_ip(obj)
            self._allocate_node_ports(obj)
        elif not kind.group and kind.kind == "PersistentVolumeClaim":
            self._assign_storage_class(obj)
            self._apply_limit_ranges(kind, obj)
        if kind.resets_status:
            obj.pop("status", None)
            if kind.kind == "Pod":
                obj["status"] = initial_pod_status(obj)
            elif kind.initial_status is not None:
                obj["status"] = copy_json(kind.initial_status)

    def admit_update(self, kind: ServedKind, old: Json, new: Json) -> None:
        """Complete an update in place: a service keeps its cluster IP and may get node ports."""
        if kind.plural == "customresourcedefinitions":
            if new.get("spec") != old.get("spec"):
                # Not again otherwise: a definition of an earlier rule could not be deleted.
                check_crd(new, old)
            complete_definition(self._registry, new, format_timestamp(datetime.now(UTC)))
        if not kind.group and kind.kind == "PersistentVolumeClaim":
            self._check_growth(old, new)
            self._apply_limit_ranges(kind, new)
        if kind.group or kind.kind != "Service":
            return
        spec, former = new.get("spec", {}), old.get("spec", {})
        if spec.get("type") != "ExternalName" and former.get("clusterIP"):
            spec.setdefault("clusterIP", former["clusterIP"])
            spec.setdefault("clusterIPs", [spec["clusterIP"]])
        self._allocate_cluster_ip(new)
        self._allocate_node_ports(new)

    def admit_deletion(self, kind: ServedKind, name: str) -> None:
        """Refuse the deletion of objects that the cluster requires. Raises StatusError: 403."""
        if not kind.group and kind.kind == "Namespace" and name in PROTECTED_NAMESPACES:
            raise forbidden_object("namespaces", "", name, "this namespace may not be deleted")

    def _apply_service_account(self, pod: Json) -> None:
        """Refuse a pod whose service account does not exist; ``default`` is created soon after.

        An account that declines the mount of its token declines for pods that leave it open. All
        others get a volume with token, CA and namespace, as in Kubernetes.
        """
        spec, meta = pod.get("spec"), pod["metadata"]
        if not isinstance(spec, dict):
            return
        account = spec.get("serviceAccountName") or "default"
        if not isinstance(account, str):
            return
        stored = self._store.latest("serviceaccounts.", f"{meta['namespace']}/{account}")
        if stored is not None:
            if stored.get("automountServiceAccountToken") is False:
                spec.setdefault("automountServiceAccountToken", False)
        elif account != "default":
            why = f"error looking up service account {meta['namespace']}/{account}: "
            why += f'serviceaccount "{account}" not found'
            raise forbidden_object("pods", "", meta["name"], why)
        spec.setdefault("serviceAccountName", account)
        spec.setdefault("serviceAccount", account)
        if spec.get("automountServiceAccountToken") is not False:
            _mount_api_access(spec)

    def _check_workload(self, group: Json) -> None:
        """Refuse a PodGroup whose Workload does not exist, or is being deleted."""
        name = subobject(group, "spec", "workloadRef").get("workloadName")
        if not name:
            return
        meta = group["metadata"]
        stored = self._store.latest(f"workloads.{workload.GROUP}", f"{meta['namespace']}/{name}")
        if stored is None or stored["metadata"].get("deletionTimestamp"):
            problem = "was not found: create it first" if stored is None else "is being deleted"
            why = f'workload "{name}" {problem}'
            raise forbidden_object("podgroups", workload.GROUP, meta["name"], why)

    def _apply_runtime_class(self, pod: Json) -> None:
        """Refuse a pod whose runtime class does not exist. Add what the class adds to its pods:
        overhead, and the constraints of its nodes.
        """
        spec, name = pod.get("spec"), pod["metadata"]["name"]
        if not isinstance(spec, dict) or not spec.get("runtimeClassName"):
            return
        chosen = str(spec["runtimeClassName"])
        runtime = self._store.latest("runtimeclasses.node.k8s.io", chosen)

        def refuse(why: str) -> StatusError:
            return forbidden_object("pods", "", name, f"pod rejected: {why}")

        if runtime is None:
            raise refuse(f'RuntimeClass "{chosen}" not found')
        overhead = subobject(runtime, "overhead", "podFixed")
        if spec.get("overhead", overhead) != overhead:
            raise refuse("Pod's Overhead doesn't match RuntimeClass's defined Overhead")
        if overhead:
            spec["overhead"] = overhead
        scheduling = subobject(runtime, "scheduling")
        selector = spec.get("nodeSelector") or {}
        for label, value in subobject(scheduling, "nodeSelector").items():
            if selector.get(label, value) != value:
                raise refuse(f"conflict: node selector {label} of the pod and of {chosen} differ")
            spec["nodeSelector"] = selector = {**selector, label: value}
        added = [one for one in scheduling.get("tolerations") or []
                 if one not in (spec.get("tolerations") or [])]  # fmt: skip
        if added:
            spec["tolerations"] = [*(spec.get("tolerations") or []), *added]

    def _assign_priority(self, kind: ServedKind, obj: Json) -> None:
        cache = self._store.cache("priorityclasses.scheduling.k8s.io")
        classes = {key: read_json(record.body) for key, record in list(cache.records.items())}
        default = next((c for c in classes.values() if c.get("globalDefault")), None)
        spec = obj.get("spec")
        if not isinstance(spec, dict):
            return
        given = spec.get("priority")
        if not apply_priority(obj, classes, default):
            why = f"no PriorityClass with name {spec.get('priorityClassName')} was found"
            raise forbidden_object(kind.plural, kind.group, obj["metadata"]["name"], why)
        computed = spec.get("priority") if spec.get("priorityClassName") else 0
        if given not in (None, computed):
            why = f"the integer value of priority ({given}) must not be provided in pod spec; "
            why += f"priority admission controller computed {computed} from the given "
            why += "PriorityClass name"
            raise forbidden_object(kind.plural, kind.group, obj["metadata"]["name"], why)

    def _apply_limit_ranges(self, kind: ServedKind, obj: Json) -> None:
        """Give a pod the amounts that it does not name; refuse one outside of the bounds."""
        meta = obj["metadata"]
        records = self._store.cache("limitranges.").latest_in(meta["namespace"])
        ranges = [read_json(record.body) for record in records]
        if not ranges or not isinstance(obj.get("spec"), dict):
            return
        if kind.kind == "Pod":
            apply_limit_ranges(ranges, obj)
        if violated := violated_bounds(ranges, kind.kind, obj):
            raise forbidden_object(kind.plural, "", meta["name"], "; ".join(violated))

    def _assign_storage_class(self, claim: Json) -> None:
        """Set the default storage class of a claim that names none."""
        spec = claim.get("spec")
        if not isinstance(spec, dict) or spec.get("storageClassName") is not None:
            return
        records = self._store.cache("storageclasses.storage.k8s.io").records
        classes = [read_json(record.body)["metadata"] for record in list(records.values())]
        defaults = [
            m
            for m in classes
            if (m.get("annotations") or {}).get(DEFAULT_CLASS_ANNOTATION) == "true"
        ]
        if defaults:
            # API rule: the newest default class applies; equal times are ordered by name.
            defaults.sort(key=lambda meta: str(meta["name"]))
            newest = max(defaults, key=lambda meta: str(meta["creationTimestamp"]))
            spec["storageClassName"] = newest["name"]

    def _check_growth(self, old: Json, new: Json) -> None:
        """Refuse the growth of a claim whose storage class does not support it."""
        sizes = (subobject(claim, "spec", "resources", "requests").get("storage")
                 for claim in (old, new))  # fmt: skip
        before, after = (quantity_or_none(size) for size in sizes)
        if before is None or after is None or after <= before:
            return
        name, class_name = new["metadata"]["name"], str(old["spec"].get("storageClassName", ""))
        chosen = self._store.latest("storageclasses.storage.k8s.io", class_name)
        why = ""
        if subobject(old, "status").get("phase") != "Bound":
            why = "only bound persistent volume claims can be expanded"
        elif chosen is None or not chosen.get("allowVolumeExpansion"):
            why = "only dynamically provisioned pvc can be resized and the storageclass that "
            why += "provisions the pvc must support resize"
        if why:
            raise forbidden_object("persistentvolumeclaims", "", name, why)

    def _allocate_cluster_ip(self, service: Json) -> None:
        spec = service.get("spec")
        if not isinstance(spec, dict) or spec.get("type") == "ExternalName":
            return
        given = spec.get("clusterIP") or ""
        if given != "None":
            allocated = dict(self._allocated_addresses())
            owner = allocated.get(given, "")
            mine = f"{service['metadata'].get('namespace')}/{service['metadata'].get('name')}"
            if given and owner in ("", mine):
                self._check_in_range(service, given)
            elif given:
                self._refuse_address(service, given, "provided IP is already allocated")
            else:
                given = self._free_address(allocated)
        spec["clusterIP"] = given
        spec["clusterIPs"] = [given]
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")

    def _check_in_range(self, service: Json, address: str) -> None:
        try:
            inside = ipaddress.ip_address(address) in self._services
        except ValueError:
            return  # validation reports it in more detail
        if not inside:
            detail = f"the provided IP is not in the valid range, which is {self._services}"
            self._refuse_address(service, address, detail)

    def _refuse_address(self, service: Json, address: str, why: str) -> None:
        detail = f"failed to allocate IP {address}: {why}"
        cause = field_causes.invalid("spec.clusterIPs", address, detail)
        raise invalid("", "Service", service["metadata"].get("name", ""), [cause])

    def _allocated_addresses(self) -> Iterator[tuple[str, str]]:
        for record in self._store.cache("services.").all_latest():
            yield record.fields.get("spec.clusterIP", ""), record.key

    def _free_address(self, allocated: dict[str, str]) -> str:
        usable = self._services.num_addresses - 3
        for _ in range(usable):
            # The first address belongs to the API server. Others are allocated in turn, so that a
            # removed service's address is not reused immediately.
            self._next_address = self._next_address % usable + 1
            address = str(self._services[self._next_address + 1])
            if address not in allocated:
                return address
        raise status_error(500, "InternalError", f"no free address in {self._services}")

    def _allocate_node_ports(self, service: Json) -> None:
        spec = service.get("spec")
        if not isinstance(spec, dict) or spec.get("type") not in NODE_PORT_TYPES:
            return
        ports = objects_in(spec.get("ports"))
        taken = self._ports_of_others(service["metadata"])
        own = {port.get("nodePort") for port in ports}
        for index, port in enumerate(ports):
            given = port.get("nodePort")
            if not given:
                given = next((n for n in NODE_PORTS if n not in taken and n not in own), None)
                port["nodePort"] = given
                own.add(given)
            why = "provided port is already allocated" if given in taken else ""
            if given not in NODE_PORTS:
                why = f"provided port is not in the valid range {NODE_PORTS[0]}-{NODE_PORTS[-1]}"
            if why:
                cause = field_causes.invalid(f"spec.ports[{index}].nodePort", given, why)
                raise invalid("", "Service", service["metadata"].get("name", ""), [cause])

    def _ports_of_others(self, meta: Json) -> set[Any]:
        own = f"{meta.get('namespace')}/{meta.get('name')}"
        return {
            port.get("nodePort")
            for record in self._store.cache("services.").all_latest()
            if record.key != own and record.fields.get("spec.type") in NODE_PORT_TYPES
            for port in read_json(record.body)["spec"].get("ports", [])
        }


def check_crd(definition: Json, old: Json | None = None) -> None:
    """Refuse an invalid CustomResourceDefinition, or an invalid change of ``old``. Raises
    StatusError: 422 with all errors.
    """
    causes = crd_causes(definition)
    if old is not None and not causes:
        causes = list(crd_update_causes(old, definition))
    if causes:
        name = str(definition["metadata"].get("name", ""))
        raise invalid("apiextensions.k8s.io", "CustomResourceDefinition", name, causes)


def _terminating(kind: ServedKind, name: str, namespace: str) -> StatusError:
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    # Controllers of Kubernetes, Kueue and JobSet do not try again after this cause.
    text = f"namespace {namespace} is being terminated"
    cause = StatusCause("NamespaceTerminating", text, "metadata.namespace")
    return forbidden_object(kind.plural, kind.group, name, why, [cause])


def _mount_api_access(spec: Json) -> None:
    """Mount the token of the account into the containers that mount nothing else there."""
    suffix = "".join(secrets.choice(SUFFIX_LETTERS) for _ in range(5))
    name, mounted = f"kube-api-access-{suffix}", False
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        mounts = container["volumeMounts"] = container.get("volumeMounts") or []
        if all(mount.get("mountPath", "").rstrip("/") != API_ACCESS_PATH for mount in mounts):
            mounts.append({"name": name, "mountPath": API_ACCESS_PATH, "readOnly": True})
            mounted = True
    if not mounted:
        return
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    authority = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    sources: list[Json] = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": authority},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
    ]
    volumes = spec["volumes"] = spec.get("volumes") or []
    volumes.append({"name": name, "projected": {"sources": sources, "defaultMode": 0o644}})
