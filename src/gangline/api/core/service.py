"""Services and the endpoints behind them."""

from typing import Annotated

import msgspec

from gangline.api.core.reference import ObjectReference
from gangline.api.meta.field_doc import FreeForm, IntOrString, doc
from gangline.api.meta.objects import Condition, Object, Wire


class ServicePort(Wire):
    """A port of a service."""

    name: Annotated[str, doc("Name; needed when there are several.")] = ""
    protocol: Annotated[
        str,
        doc("Protocol; TCP when not given.", values=("TCP", "UDP", "SCTP"), default="TCP"),
    ] = ""
    app_protocol: Annotated[str, doc("Protocol on top, such as kubernetes.io/h2c.")] = ""
    port: Annotated[int, doc("Port of the service.", required=True, minimum=1, maximum=65535)] = 0
    target_port: Annotated[
        IntOrString | None, doc("Number or name of the pods' port; port when not given.")
    ] = None
    node_port: Annotated[int, doc("Port on each node (NodePort).")] = 0


class ServiceSpec(Wire):
    """The pods behind a service, and how clients reach it."""

    type: Annotated[
        str,
        doc(
            "Type of the service; ClusterIP when not given.",
            values=("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"),
        ),
    ] = ""
    selector: Annotated[dict[str, str], doc("Labels of its pods.")] = {}
    ports: Annotated[list[ServicePort], doc("Its ports.", keys=("port", "protocol"))] = []
    cluster_ip: Annotated[str, doc("Its address; None for a headless service.")] = msgspec.field(
        name="clusterIP", default=""
    )
    cluster_ips: Annotated[list[str], doc("Its addresses.")] = msgspec.field(
        name="clusterIPs", default_factory=list
    )
    external_ips: Annotated[list[str], doc("Further addresses.")] = msgspec.field(
        name="externalIPs", default_factory=list
    )
    external_name: Annotated[str, doc("DNS name it is an alias for.")] = ""
    session_affinity: Annotated[
        str, doc("Send a client to the same pod.", values=("None", "ClientIP"))
    ] = ""
    session_affinity_config: Annotated[FreeForm | None, doc("For how long.")] = None
    publish_not_ready_addresses: Annotated[
        bool, doc("Publish addresses of pods that are not ready.")
    ] = False
    ip_families: Annotated[list[str], doc("IPv4, IPv6.")] = []
    ip_family_policy: Annotated[
        str,
        doc("One family or two.", values=("SingleStack", "PreferDualStack", "RequireDualStack")),
    ] = ""
    internal_traffic_policy: Annotated[
        str, doc("Pods for traffic from inside the cluster.", values=("Cluster", "Local"))
    ] = ""
    external_traffic_policy: Annotated[
        str, doc("Pods for traffic from outside.", values=("Cluster", "Local"))
    ] = ""
    health_check_node_port: Annotated[int, doc("Port for load balancers' checks.")] = 0
    load_balancer_ip: Annotated[str, doc("No longer used.")] = msgspec.field(
        name="loadBalancerIP", default=""
    )
    load_balancer_class: Annotated[str, doc("Implementation of the load balancer.")] = ""
    load_balancer_source_ranges: Annotated[list[str], doc("Clients that may connect.")] = []
    allocate_load_balancer_node_ports: Annotated[bool | None, doc("Open node ports.")] = None
    traffic_distribution: Annotated[str, doc("Preference among pods.")] = ""


class ServiceStatus(Wire):
    """The observed state of a service."""

    load_balancer: Annotated[FreeForm, doc("Addresses of its load balancer.")] = {}
    conditions: Annotated[list[Condition], doc("Current conditions.", keys=("type",))] = []


class Service(Object):
    """A name and address for a set of pods."""

    spec: Annotated[ServiceSpec, doc("Desired state.")] = ServiceSpec()
    status: Annotated[ServiceStatus, doc("Observed state.")] = ServiceStatus()


class EndpointAddress(Wire):
    """An address behind a service."""

    ip: Annotated[str, doc("The address.", required=True)] = ""
    hostname: Annotated[str, doc("Name of it within the service.")] = ""
    node_name: Annotated[str, doc("Node it is on.")] = ""
    target_ref: Annotated[ObjectReference | None, doc("The pod.")] = None


class EndpointPort(Wire):
    """A port behind a service."""

    name: Annotated[str, doc("Name of the service's port.")] = ""
    port: Annotated[int, doc("Number.", required=True)] = 0
    protocol: Annotated[str, doc("Protocol; TCP when not given.")] = ""
    app_protocol: Annotated[str, doc("Protocol on top.")] = ""


class EndpointSubset(Wire):
    """Addresses that share the same ports."""

    addresses: Annotated[list[EndpointAddress], doc("Ready addresses.")] = []
    not_ready_addresses: Annotated[list[EndpointAddress], doc("Addresses not ready.")] = []
    ports: Annotated[list[EndpointPort], doc("The ports.")] = []


class Endpoints(Object):
    """The addresses behind the service of the same name."""

    subsets: Annotated[list[EndpointSubset], doc("Addresses and ports.")] = []


class EndpointConditions(Wire):
    """The current state of an endpoint."""

    ready: Annotated[bool | None, doc("Accepts new connections.")] = None
    serving: Annotated[bool | None, doc("Responds, even while terminating.")] = None
    terminating: Annotated[bool | None, doc("Is terminating.")] = None


class Endpoint(Wire):
    """One pod behind a service."""

    addresses: Annotated[list[str], doc("Its addresses.", required=True)] = []
    conditions: Annotated[EndpointConditions | None, doc("Current conditions.")] = None
    hostname: Annotated[str, doc("Name of it within the service.")] = ""
    node_name: Annotated[str, doc("Node it is on.")] = ""
    target_ref: Annotated[ObjectReference | None, doc("The pod.")] = None
    zone: Annotated[str, doc("Zone it is in.")] = ""
    hints: Annotated[FreeForm | None, doc("Clients that it should serve.")] = None
    deprecated_topology: Annotated[FreeForm | None, doc("No longer used.")] = None


class EndpointSlice(Object):
    """Some of the addresses behind a service."""

    address_type: Annotated[
        str, doc("Type of the addresses.", required=True, values=("IPv4", "IPv6", "FQDN"))
    ] = ""
    endpoints: Annotated[list[Endpoint], doc("The pods.")] = []
    ports: Annotated[list[EndpointPort], doc("The ports of each.")] = []
