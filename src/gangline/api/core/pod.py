"""A pod: containers that share one node, network and life time."""

from typing import Annotated

import msgspec

from gangline.api.core.affinity import Affinity, Toleration, TopologySpreadConstraint
from gangline.api.core.container import Container, EphemeralContainer, ResourceRequirements
from gangline.api.core.pod_status import PodStatus
from gangline.api.core.reference import LocalObjectReference
from gangline.api.core.security import PodSecurityContext
from gangline.api.core.volumes import Volume
from gangline.api.meta.field_doc import ResourceList, doc
from gangline.api.meta.objects import Object, ObjectMeta, Wire


class HostAlias(Wire):
    """Names added to the pod's hosts file."""

    ip: Annotated[str, doc("Address.", required=True)] = ""
    hostnames: Annotated[list[str], doc("Names of the address.")] = []


class PodDNSConfigOption(Wire):
    """One resolver option."""

    name: Annotated[str, doc("Name of the option.")] = ""
    value: Annotated[str | None, doc("Value of the option.")] = None


class PodDNSConfig(Wire):
    """Resolver settings on top of those of dnsPolicy."""

    nameservers: Annotated[list[str], doc("Name servers to add.")] = []
    searches: Annotated[list[str], doc("Search domains to add.")] = []
    options: Annotated[list[PodDNSConfigOption], doc("Options to add or override.")] = []


class PodReadinessGate(Wire):
    """A further condition that must be True before the pod is ready."""

    condition_type: Annotated[str, doc("Type of the condition.", required=True)] = ""


class PodSchedulingGate(Wire):
    """A gate that must be removed before the pod is scheduled."""

    name: Annotated[str, doc("Name of the gate.", required=True)] = ""


class PodOS(Wire):
    """The operating system that the containers are made for."""

    name: Annotated[str, doc("linux or windows.", required=True)] = ""


class PodResourceClaim(Wire):
    """A device claim that containers may use."""

    name: Annotated[str, doc("Name inside the pod.", required=True)] = ""
    resource_claim_name: Annotated[str, doc("An existing claim.")] = ""
    resource_claim_template_name: Annotated[str, doc("A template to make a claim from.")] = ""


class PodSchedulingGroup(Wire):
    """The group that a pod is scheduled with."""

    pod_group_name: Annotated[
        str, doc("PodGroup (scheduling.k8s.io) of the pod's namespace.", required=True)
    ] = ""


class PodSpec(Wire):
    """The desired state of a pod."""

    containers: Annotated[
        list[Container],
        doc("The containers; at least one.", required=True, keys=("name",)),
    ] = []
    init_containers: Annotated[
        list[Container],
        doc("Run to completion, one after the other, before the containers.", keys=("name",)),
    ] = []
    ephemeral_containers: Annotated[
        list[EphemeralContainer], doc("Added to a running pod for debugging.", keys=("name",))
    ] = []
    volumes: Annotated[list[Volume], doc("Volumes that containers may mount.", keys=("name",))] = []
    restart_policy: Annotated[
        str,
        doc(
            "When a container that ended is restarted; Always when not given.",
            values=("Always", "OnFailure", "Never"),
        ),
    ] = ""
    termination_grace_period_seconds: Annotated[
        int | None, doc("Seconds between SIGTERM and SIGKILL; 30 when not given.", minimum=0)
    ] = None
    active_deadline_seconds: Annotated[
        int | None, doc("Seconds the pod may run before it fails.", minimum=1)
    ] = None
    node_selector: Annotated[dict[str, str], doc("Labels that the node must have.")] = {}
    node_name: Annotated[str, doc("The node; set by the scheduler.")] = ""
    affinity: Annotated[Affinity | None, doc("Affinity rules.")] = None
    tolerations: Annotated[list[Toleration], doc("Tolerated taints.")] = []
    topology_spread_constraints: Annotated[
        list[TopologySpreadConstraint],
        doc("How to spread pods.", keys=("topologyKey", "whenUnsatisfiable")),
    ] = []
    scheduler_name: Annotated[
        str, doc("Scheduler of the pod; default-scheduler when not given.")
    ] = ""
    scheduling_gates: Annotated[
        list[PodSchedulingGate],
        doc("The pod is not scheduled until all are removed.", keys=("name",)),
    ] = []
    priority_class_name: Annotated[str, doc("Class that its priority comes from.")] = ""
    priority: Annotated[int | None, doc("Its priority; filled in from the class.")] = None
    preemption_policy: Annotated[
        str,
        doc("Whether it may preempt other pods.", values=("PreemptLowerPriority", "Never")),
    ] = ""
    service_account_name: Annotated[str, doc("Account that it runs as.")] = ""
    service_account: Annotated[str, doc("Old name of serviceAccountName.")] = ""
    automount_service_account_token: Annotated[
        bool | None, doc("Mount the account's token; yes when not given.")
    ] = None
    image_pull_secrets: Annotated[
        list[LocalObjectReference], doc("Secrets to pull images with.", keys=("name",))
    ] = []
    security_context: Annotated[
        PodSecurityContext | None, doc("Rights shared by all containers.")
    ] = None
    host_network: Annotated[bool, doc("Use the node's network.")] = False
    host_pid: Annotated[bool, doc("See the node's processes.")] = msgspec.field(
        name="hostPID", default=False
    )
    host_ipc: Annotated[bool, doc("Use the node's IPC.")] = msgspec.field(
        name="hostIPC", default=False
    )
    host_users: Annotated[bool | None, doc("Use the node's user ids; yes if not given.")] = None
    share_process_namespace: Annotated[
        bool | None, doc("Containers see each other's processes.")
    ] = None
    hostname: Annotated[str, doc("Host name of the pod; its name when not given.")] = ""
    hostname_override: Annotated[
        str, doc("Host name of the pod; overrides all other settings.")
    ] = ""
    subdomain: Annotated[str, doc("Name of a headless service that gives it a name.")] = ""
    set_hostname_as_fqdn: Annotated[bool | None, doc("Use the full name as host name.")] = (
        msgspec.field(name="setHostnameAsFQDN", default=None)
    )
    host_aliases: Annotated[list[HostAlias], doc("Names for the hosts file.", keys=("ip",))] = []
    dns_policy: Annotated[
        str,
        doc(
            "How names are resolved; ClusterFirst when not given.",
            values=("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
        ),
    ] = ""
    dns_config: Annotated[PodDNSConfig | None, doc("Further resolver settings.")] = None
    readiness_gates: Annotated[list[PodReadinessGate], doc("Further readiness conditions.")] = []
    runtime_class_name: Annotated[str | None, doc("Container runtime to use.")] = None
    enable_service_links: Annotated[
        bool | None, doc("Give services as variables; yes when not given.")
    ] = None
    overhead: Annotated[ResourceList, doc("Resources of the sandbox.")] = {}
    os: Annotated[PodOS | None, doc("Operating system of the containers.")] = None
    resource_claims: Annotated[list[PodResourceClaim], doc("Device claims.", keys=("name",))] = []
    resources: Annotated[ResourceRequirements | None, doc("Requests and limits at pod level.")] = (
        None
    )
    scheduling_group: Annotated[
        PodSchedulingGroup | None, doc("Group that is scheduled together.")
    ] = None


class Pod(Object):
    """Containers that share one node, network and life time."""

    spec: Annotated[PodSpec, doc("Desired state.")] = PodSpec()
    status: Annotated[PodStatus, doc("Observed state; written by its kubelet.")] = PodStatus()


class PodTemplateSpec(Wire):
    """The metadata and specification of pods made from this template."""

    metadata: Annotated[ObjectMeta, doc("Labels and annotations of the pods.")] = ObjectMeta()
    spec: Annotated[PodSpec, doc("Specification of the pods.")] = PodSpec()


def is_pod_ready(pod: Pod) -> bool:
    return any(
        condition.type == "Ready" and condition.status == "True"
        for condition in pod.status.conditions
    )
