"""A container of a pod: image, command, environment, ports, resources, mounts."""

from typing import Annotated

import msgspec

from gangline.api.core.probe import Lifecycle, Probe
from gangline.api.core.security import SecurityContext
from gangline.api.meta.field_doc import Quantity, ResourceList, doc
from gangline.api.meta.objects import Wire


class ContainerPort(Wire):
    """A port that the container listens on. A port that is not listed is open as well."""

    name: Annotated[str, doc("Name that services and probes may use; at most 15 characters.")] = ""
    container_port: Annotated[
        int,
        doc("Number of the port inside the pod.", required=True, minimum=1, maximum=65535),
    ] = 0
    host_port: Annotated[int, doc("Port of the node that leads to this one.")] = 0
    host_ip: Annotated[str, doc("Address of the node to bind the host port to.")] = msgspec.field(
        name="hostIP", default=""
    )
    protocol: Annotated[
        str,
        doc("Protocol; TCP when not given.", values=("TCP", "UDP", "SCTP"), default="TCP"),
    ] = ""


class ObjectFieldSelector(Wire):
    """A field of the pod itself."""

    api_version: Annotated[str, doc("API version of the path; v1 when not given.")] = ""
    field_path: Annotated[
        str,
        doc("Such as metadata.name, status.podIP or metadata.labels['x'].", required=True),
    ] = ""


class ResourceFieldSelector(Wire):
    """A request or limit of a container."""

    container_name: Annotated[str, doc("Which container; needed for volumes only.")] = ""
    resource: Annotated[str, doc("Such as limits.cpu or requests.memory.", required=True)] = ""
    divisor: Annotated[Quantity | None, doc("Unit to divide by; 1 when not given.")] = None


class ConfigMapKeySelector(Wire):
    """One key of a ConfigMap."""

    name: Annotated[str, doc("Name of the ConfigMap.")] = ""
    key: Annotated[str, doc("Key to read.", required=True)] = ""
    optional: Annotated[bool | None, doc("Start without it if it is missing.")] = None


class SecretKeySelector(Wire):
    """One key of a Secret."""

    name: Annotated[str, doc("Name of the Secret.")] = ""
    key: Annotated[str, doc("Key to read.", required=True)] = ""
    optional: Annotated[bool | None, doc("Start without it if it is missing.")] = None


class FileKeySelector(Wire):
    """One variable of an environment file in a volume."""

    volume_name: Annotated[str, doc("Volume that holds the file.", required=True)] = ""
    path: Annotated[str, doc("File inside the volume.", required=True)] = ""
    key: Annotated[str, doc("Variable to read.", required=True)] = ""
    optional: Annotated[bool | None, doc("Start without it if it is missing.")] = None


class EnvVarSource(Wire):
    """The source of a variable's value. Exactly one is given."""

    field_ref: Annotated[ObjectFieldSelector | None, doc("A field of this pod.")] = None
    resource_field_ref: Annotated[
        ResourceFieldSelector | None, doc("A request or limit of this container.")
    ] = None
    config_map_key_ref: Annotated[ConfigMapKeySelector | None, doc("A ConfigMap's key.")] = None
    secret_key_ref: Annotated[SecretKeySelector | None, doc("A Secret's key.")] = None
    file_key_ref: Annotated[FileKeySelector | None, doc("A variable in a file.")] = None


class EnvVar(Wire):
    """One environment variable: a literal value or a source."""

    name: Annotated[str, doc("Name of the variable.", required=True)] = ""
    value: Annotated[
        str, doc("Value; $(NAME) is replaced by variables defined earlier, $$ is a plain $.")
    ] = ""
    value_from: Annotated[
        EnvVarSource | None, doc("Take the value from elsewhere; not together with value.")
    ] = None


class ConfigMapEnvSource(Wire):
    """All keys of a ConfigMap as variables."""

    name: Annotated[str, doc("Name of the ConfigMap.")] = ""
    optional: Annotated[bool | None, doc("Start without it if it is missing.")] = None


class SecretEnvSource(Wire):
    """All keys of a Secret as variables."""

    name: Annotated[str, doc("Name of the Secret.")] = ""
    optional: Annotated[bool | None, doc("Start without it if it is missing.")] = None


class EnvFromSource(Wire):
    """All keys of a ConfigMap or Secret, as variables."""

    prefix: Annotated[str, doc("Put before each key.")] = ""
    config_map_ref: Annotated[ConfigMapEnvSource | None, doc("The ConfigMap.")] = None
    secret_ref: Annotated[SecretEnvSource | None, doc("The Secret.")] = None


class ContainerClaim(Wire):
    """A device claim of the pod that a container uses."""

    name: Annotated[str, doc("Name of an entry of the pod's resourceClaims.", required=True)] = ""
    request: Annotated[str, doc("One request of the claim; all when not given.")] = ""


class ResourceRequirements(Wire):
    """Resources that are reserved for the container, and the most that it may use."""

    limits: Annotated[
        ResourceList,
        doc(
            "Most it may use. Beyond the cpu limit it is throttled, beyond the memory limit killed."
        ),
    ] = {}
    requests: Annotated[
        ResourceList,
        doc("Reserved by the scheduler; equal to the limit where only that is given."),
    ] = {}
    claims: Annotated[list[ContainerClaim], doc("Device claims used.", keys=("name",))] = []


class ContainerResizePolicy(Wire):
    """Whether a change of a resource needs a restart of the container."""

    resource_name: Annotated[str, doc("cpu or memory.", required=True)] = ""
    restart_policy: Annotated[str, doc("NotRequired or RestartContainer.", required=True)] = ""


class ContainerRestartRuleOnExitCodes(Wire):
    """The exit codes that a restart rule applies to."""

    operator: Annotated[str, doc("Whether the code is in the list.", values=("In", "NotIn"))] = ""
    values: Annotated[list[int], doc("Exit codes.")] = []


class ContainerRestartRule(Wire):
    """A restart decision for certain exits."""

    action: Annotated[str, doc("What to do: Restart or RestartAllContainers.")] = ""
    exit_codes: Annotated[
        ContainerRestartRuleOnExitCodes | None, doc("Exit codes that it applies to.")
    ] = None


class VolumeMount(Wire):
    """Where a volume of the pod appears in the container."""

    name: Annotated[str, doc("Name of one of the pod's volumes.", required=True)] = ""
    mount_path: Annotated[str, doc("Directory to mount at; contains no colon.", required=True)] = ""
    read_only: Annotated[bool, doc("Mount without permission to write.")] = False
    recursive_read_only: Annotated[
        str, doc("Make mounts below read-only too: Disabled, IfPossible or Enabled.")
    ] = ""
    sub_path: Annotated[str, doc("Mount this path of the volume instead of its root.")] = ""
    sub_path_expr: Annotated[str, doc("As subPath, with $(NAME) of variables replaced.")] = ""
    mount_propagation: Annotated[
        str,
        doc(
            "Whether later mounts propagate between container and node; None when not given.",
            values=("None", "HostToContainer", "Bidirectional"),
        ),
    ] = ""


class VolumeDevice(Wire):
    """A raw block device in the container."""

    name: Annotated[str, doc("Name of one of the pod's volumes.", required=True)] = ""
    device_path: Annotated[str, doc("Path of the device in the container.", required=True)] = ""


class Container(Wire):
    """One container of a pod."""

    name: Annotated[str, doc("Unique in the pod; a DNS label.", required=True)] = ""
    image: Annotated[str, doc("Image to run, with registry and tag or digest.")] = ""
    command: Annotated[
        list[str], doc("Program in place of the image's entry point, not run in a shell.")
    ] = []
    args: Annotated[list[str], doc("Arguments in place of the image's.")] = []
    working_dir: Annotated[str, doc("Directory to start in; the image's when not given.")] = ""
    ports: Annotated[
        list[ContainerPort],
        doc("Ports the container listens on.", keys=("containerPort", "protocol")),
    ] = []
    env_from: Annotated[
        list[EnvFromSource], doc("ConfigMaps and Secrets as variables; env takes precedence.")
    ] = []
    env: Annotated[list[EnvVar], doc("Environment variables.", keys=("name",))] = []
    resources: Annotated[ResourceRequirements, doc("Requests and limits of resources.")] = (
        ResourceRequirements()
    )
    resize_policy: Annotated[
        list[ContainerResizePolicy], doc("How changes of resources are applied.")
    ] = []
    restart_policy: Annotated[
        str,
        doc("Always on an init container makes it a sidecar that runs beside the containers."),
    ] = ""
    restart_policy_rules: Annotated[
        list[ContainerRestartRule], doc("Decisions by exit code, before restartPolicy.")
    ] = []
    volume_mounts: Annotated[list[VolumeMount], doc("Volumes to mount.", keys=("mountPath",))] = []
    volume_devices: Annotated[
        list[VolumeDevice], doc("Block devices to attach.", keys=("devicePath",))
    ] = []
    liveness_probe: Annotated[Probe | None, doc("The container is restarted when this fails.")] = (
        None
    )
    readiness_probe: Annotated[
        Probe | None, doc("The pod gets no traffic from services while this fails.")
    ] = None
    startup_probe: Annotated[
        Probe | None, doc("Other probes wait for it; the container is restarted if it fails.")
    ] = None
    lifecycle: Annotated[Lifecycle | None, doc("Hooks after start and before stop.")] = None
    termination_message_path: Annotated[
        str,
        doc("File whose content becomes the exit message; /dev/termination-log by default."),
    ] = ""
    termination_message_policy: Annotated[
        str,
        doc("Source of the exit message.", values=("File", "FallbackToLogsOnError")),
    ] = ""
    image_pull_policy: Annotated[
        str,
        doc(
            "When to pull the image; Always for :latest, else IfNotPresent.",
            values=("Always", "IfNotPresent", "Never"),
        ),
    ] = ""
    security_context: Annotated[
        SecurityContext | None,
        doc("Rights of the container; takes precedence over the pod's."),
    ] = None
    stdin: Annotated[bool, doc("Keep standard input open.")] = False
    stdin_once: Annotated[bool, doc("Close standard input after the first client detached.")] = (
        False
    )
    tty: Annotated[bool, doc("Give the container a terminal; needs stdin.")] = False


class EphemeralContainer(Container):
    """A container added to a running pod for debugging."""

    target_container_name: Annotated[str, doc("Share the processes of this container.")] = ""
