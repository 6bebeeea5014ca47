"""Services and the endpoints behind them."""

from typing import Annotated

import msgspec

from gangline.api.describe import FreeForm, IntOrString, about
from gangline.api.meta import Condition, Object, Wire
from gangline.api.reference import ObjectReference


class ServicePort(Wire):
    """A port of a service."""

    name: Annotated[str, about("Name; needed when there are several.")] = ""
    protocol: Annotated[
        str, about("Protocol; TCP when not given.", values=("TCP", "UDP", "SCTP"), default="TCP")
    ] = ""
    app_protocol: Annotated[str, about("Protocol on top, such as kubernetes.io/h2c.")] = ""
    port: Annotated[int, about("Port of the service.", required=True, minimum=1, maximum=65535)] = 0
    target_port: Annotated[
        IntOrString | None, about("Number or name of the pods' port; port when not given.")
    ] = None
    node_port: Annotated[int, about("Port on each node (NodePort).")] = 0


class ServiceSpec(Wire):
    """The pods behind a service, and how clients reach it."""

    type: Annotated[
        str,
        about(
            "Type of the service; ClusterIP when not given.",
            values=("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"),
        ),
    ] = ""
    selector: Annotated[dict[str, str], about("Labels of its pods.")] = {}
    ports: Annotated[list[ServicePort], about("Its ports.", keys=("port", "protocol"))] = []
    cluster_ip: Annotated[str, about("Its address; None for a headless service.")] = msgspec.field(
        name="clusterIP", default=""
    )
    cluster_ips: Annotated[list[str], about("Its addresses.")] = msgspec.field(
        name="clusterIPs", default_factory=list
    )
    external_ips: Annotated[list[str], about("Further addresses.")] = msgspec.field(
        name="externalIPs", default_factory=list
    )
    external_name: Annotated[str, about("DNS name it is an alias for.")] = ""
    session_affinity: Annotated[
        str, about("Send a client to the same pod.", values=("None", "ClientIP"))
    ] = ""
    session_affinity_config: Annotated[FreeForm | None, about("For how long.")] = None
    publish_not_ready_addresses: Annotated[
        bool, about("Publish addresses of pods that are not ready.")
    ] = False
    ip_families: Annotated[list[str], about("IPv4, IPv6.")] = []
    ip_family_policy: Annotated[
        str,
        about("One family or two.", values=("SingleStack", "PreferDualStack", "RequireDualStack")),
    ] = ""
    internal_traffic_policy: Annotated[
        str, about("Pods for traffic from inside the cluster.", values=("Cluster", "Local"))
    ] = ""
    external_traffic_policy: Annotated[
        str, about("Pods for traffic from outside.", values=("Cluster", "Local"))
    ] = ""
    health_check_node_port: Annotated[int, about("Port for load balancers' checks.")] = 0
    load_balancer_ip: Annotated[str, about("No longer used.")] = msgspec.field(
        name="loadBalancerIP", default=""
    )
    load_balancer_class: Annotated[str, about("Implementation of the load balancer.")] = ""
    load_balancer_source_ranges: Annotated[list[str], about("Clients that may connect.")] = []
    allocate_load_balancer_node_ports: Annotated[bool | None, about("Open node ports.")] = None
    traffic_distribution: Annotated[str, about("Preference among pods.")] = ""


class ServiceStatus(Wire):
    """The observed state of a service."""

    load_balancer: Annotated[FreeForm, about("Addresses of its load balancer.")] = {}
    conditions: Annotated[list[Condition], about("Current conditions.", keys=("type",))] = []


class Service(Object):
    """A name and address for a set of pods."""

    spec: Annotated[ServiceSpec, about("Desired state.")] = ServiceSpec()
    status: Annotated[ServiceStatus, about("Observed state.")] = ServiceStatus()


class EndpointAddress(Wire):
    """An address behind a service."""

    ip: Annotated[str, about("The address.", required=True)] = ""
    hostname: Annotated[str, about("Name of it within the service.")] = ""
    node_name: Annotated[str, about("Node it is on.")] = ""
    target_ref: Annotated[ObjectReference | None, about("The pod.")] = None


class EndpointPort(Wire):
    """A port behind a service."""

    name: Annotated[str, about("Name of the service's port.")] = ""
    port: Annotated[int, about("Number.", required=True)] = 0
    protocol: Annotated[str, about("Protocol; TCP when not given.")] = ""
    app_protocol: Annotated[str, about("Protocol on top.")] = ""


class EndpointSubset(Wire):
    """Addresses that share the same ports."""

    addresses: Annotated[list[EndpointAddress], about("Ready addresses.")] = []
    not_ready_addresses: Annotated[list[EndpointAddress], about("Addresses not ready.")] = []
    ports: Annotated[list[EndpointPort], about("The ports.")] = []


class Endpoints(Object):
    """The addresses behind the service of the same name."""

    subsets: Annotated[list[EndpointSubset], about("Addresses and ports.")] = []


class EndpointConditions(Wire):
    """The current state of an endpoint."""

    ready: Annotated[bool | None, about("Accepts new connections.")] = None
    serving: Annotated[bool | None, about("Responds, even while terminating.")] = None
    terminating: Annotated[bool | None, about("Is terminating.")] = None


class SliceEndpoint(Wire):
    """One pod behind a service."""

    addresses: Annotated[list[str], about("Its addresses.", required=True)] = []
    conditions: Annotated[EndpointConditions | None, about("Current conditions.")] = None
    hostname: Annotated[str, about("Name of it within the service.")] = ""
    node_name: Annotated[str, about("Node it is on.")] = ""
    target_ref: Annotated[ObjectReference | None, about("The pod.")] = None
    zone: Annotated[str, about("Zone it is in.")] = ""
    hints: Annotated[FreeForm | None, about("Clients that it should serve.")] = None
    deprecated_topology: Annotated[FreeForm | None, about("No longer used.")] = None


class EndpointSlice(Object):
    """Some of the addresses behind a service."""

    address_type: Annotated[
        str, about("Type of the addresses.", required=True, values=("IPv4", "IPv6", "FQDN"))
    ] = ""
    endpoints: Annotated[list[SliceEndpoint], about("The pods.")] = []
    ports: Annotated[list[EndpointPort], about("The ports of each.")] = []
