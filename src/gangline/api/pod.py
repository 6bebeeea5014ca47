"""A pod: containers that share one node, network and life time."""

from typing import Annotated

import msgspec

from gangline.api.affinity import Affinity, Toleration, TopologySpreadConstraint
from gangline.api.container import Container, EphemeralContainer, ResourceRequirements
from gangline.api.describe import FreeForm, ResourceList, about
from gangline.api.meta import Object, ObjectMeta, Wire
from gangline.api.podstatus import PodStatus
from gangline.api.reference import LocalObjectReference
from gangline.api.security import PodSecurityContext
from gangline.api.volumes import Volume


class HostAlias(Wire):
    """Names added to the pod's hosts file."""

    ip: Annotated[str, about("Address.", required=True)] = ""
    hostnames: Annotated[list[str], about("Names of the address.")] = []


class PodDNSConfigOption(Wire):
    """One resolver option."""

    name: Annotated[str, about("Name of the option.")] = ""
    value: Annotated[str | None, about("Value of the option.")] = None


class PodDNSConfig(Wire):
    """Resolver settings on top of those of dnsPolicy."""

    nameservers: Annotated[list[str], about("Name servers to add.")] = []
    searches: Annotated[list[str], about("Search domains to add.")] = []
    options: Annotated[list[PodDNSConfigOption], about("Options to add or override.")] = []


class PodReadinessGate(Wire):
    """A further condition that must be True before the pod is ready."""

    condition_type: Annotated[str, about("Type of the condition.", required=True)] = ""


class PodSchedulingGate(Wire):
    """A gate that must be removed before the pod is scheduled."""

    name: Annotated[str, about("Name of the gate.", required=True)] = ""


class PodOS(Wire):
    """The operating system that the containers are made for."""

    name: Annotated[str, about("linux or windows.", required=True)] = ""


class PodResourceClaim(Wire):
    """A device claim that containers may use."""

    name: Annotated[str, about("Name inside the pod.", required=True)] = ""
    resource_claim_name: Annotated[str, about("An existing claim.")] = ""
    resource_claim_template_name: Annotated[str, about("A template to make a claim from.")] = ""


class PodSpec(Wire):
    """The desired state of a pod."""

    containers: Annotated[
        list[Container],
        about("The containers; at least one.", required=True, keys=("name",)),
    ] = []
    init_containers: Annotated[
        list[Container],
        about("Run to completion, one after the other, before the containers.", keys=("name",)),
    ] = []
    ephemeral_containers: Annotated[
        list[EphemeralContainer], about("Added to a running pod for debugging.", keys=("name",))
    ] = []
    volumes: Annotated[
        list[Volume], about("Volumes that containers may mount.", keys=("name",))
    ] = []
    restart_policy: Annotated[
        str,
        about(
            "When a container that ended is restarted; Always when not given.",
            values=("Always", "OnFailure", "Never"),
        ),
    ] = ""
    termination_grace_period_seconds: Annotated[
        int | None, about("Seconds between SIGTERM and SIGKILL; 30 when not given.", minimum=0)
    ] = None
    active_deadline_seconds: Annotated[
        int | None, about("Seconds the pod may run before it fails.", minimum=1)
    ] = None
    node_selector: Annotated[dict[str, str], about("Labels that the node must have.")] = {}
    node_name: Annotated[str, about("The node; set by the scheduler.")] = ""
    affinity: Annotated[Affinity | None, about("Affinity rules.")] = None
    tolerations: Annotated[list[Toleration], about("Tolerated taints.")] = []
    topology_spread_constraints: Annotated[
        list[TopologySpreadConstraint],
        about("How to spread pods.", keys=("topologyKey", "whenUnsatisfiable")),
    ] = []
    scheduler_name: Annotated[
        str, about("Scheduler of the pod; default-scheduler when not given.")
    ] = ""
    scheduling_gates: Annotated[
        list[PodSchedulingGate],
        about("The pod is not scheduled until all are removed.", keys=("name",)),
    ] = []
    priority_class_name: Annotated[str, about("Class that its priority comes from.")] = ""
    priority: Annotated[int | None, about("Its priority; filled in from the class.")] = None
    preemption_policy: Annotated[
        str,
        about("Whether it may preempt other pods.", values=("PreemptLowerPriority", "Never")),
    ] = ""
    service_account_name: Annotated[str, about("Account that it runs as.")] = ""
    service_account: Annotated[str, about("Old name of serviceAccountName.")] = ""
    automount_service_account_token: Annotated[
        bool | None, about("Mount the account's token; yes when not given.")
    ] = None
    image_pull_secrets: Annotated[
        list[LocalObjectReference], about("Secrets to pull images with.", keys=("name",))
    ] = []
    security_context: Annotated[
        PodSecurityContext | None, about("Rights shared by all containers.")
    ] = None
    host_network: Annotated[bool, about("Use the node's network.")] = False
    host_pid: Annotated[bool, about("See the node's processes.")] = msgspec.field(
        name="hostPID", default=False
    )
    host_ipc: Annotated[bool, about("Use the node's IPC.")] = msgspec.field(
        name="hostIPC", default=False
    )
    host_users: Annotated[bool | None, about("Use the node's user ids; yes if not given.")] = None
    share_process_namespace: Annotated[
        bool | None, about("Containers see each other's processes.")
    ] = None
    hostname: Annotated[str, about("Host name of the pod; its name when not given.")] = ""
    hostname_override: Annotated[
        str, about("Host name of the pod; overrides all other settings.")
    ] = ""
    subdomain: Annotated[str, about("Name of a headless service that gives it a name.")] = ""
    set_hostname_as_fqdn: Annotated[bool | None, about("Use the full name as host name.")] = (
        msgspec.field(name="setHostnameAsFQDN", default=None)
    )
    host_aliases: Annotated[list[HostAlias], about("Names for the hosts file.", keys=("ip",))] = []
    dns_policy: Annotated[
        str,
        about(
            "How names are resolved; ClusterFirst when not given.",
            values=("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
        ),
    ] = ""
    dns_config: Annotated[PodDNSConfig | None, about("Further resolver settings.")] = None
    readiness_gates: Annotated[list[PodReadinessGate], about("Further readiness conditions.")] = []
    runtime_class_name: Annotated[str | None, about("Container runtime to use.")] = None
    enable_service_links: Annotated[
        bool | None, about("Give services as variables; yes when not given.")
    ] = None
    overhead: Annotated[ResourceList, about("Resources of the sandbox.")] = {}
    os: Annotated[PodOS | None, about("Operating system of the containers.")] = None
    resource_claims: Annotated[list[PodResourceClaim], about("Device claims.", keys=("name",))] = []
    resources: Annotated[
        ResourceRequirements | None, about("Requests and limits at pod level.")
    ] = None
    scheduling_group: Annotated[FreeForm | None, about("Group that is scheduled together.")] = None


class Pod(Object):
    """Containers that share one node, network and life time."""

    spec: Annotated[PodSpec, about("Desired state.")] = PodSpec()
    status: Annotated[PodStatus, about("Observed state; written by its kubelet.")] = PodStatus()


class PodTemplateSpec(Wire):
    """The metadata and specification of pods made from this template."""

    metadata: Annotated[ObjectMeta, about("Labels and annotations of the pods.")] = ObjectMeta()
    spec: Annotated[PodSpec, about("Specification of the pods.")] = PodSpec()
