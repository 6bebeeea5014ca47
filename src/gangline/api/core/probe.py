"""Actions of a kubelet on a running container: probes and lifecycle hooks."""

from typing import Annotated

from gangline.api.meta.field_doc import IntOrString, field_doc
from gangline.api.meta.objects import Wire


class ExecAction(Wire):
    """Run a command inside the container; exit code 0 means success."""

    command: Annotated[
        list[str], field_doc("Program and arguments, run without a shell in the container.")
    ] = []


class HTTPHeader(Wire):
    """One header sent with a probe's request."""

    name: Annotated[str, field_doc("Name of the header.", required=True)] = ""
    value: Annotated[str, field_doc("Value of the header.", required=True)] = ""


class HTTPGetAction(Wire):
    """Send an HTTP GET request; a status code from 200 to 399 means success."""

    path: Annotated[str, field_doc("Path of the request; / when not given.")] = ""
    port: Annotated[
        IntOrString, field_doc("Number or name of the container's port.", required=True)
    ] = 0
    host: Annotated[str, field_doc("Host to connect to; the pod's address when not given.")] = ""
    scheme: Annotated[
        str, field_doc("Protocol; HTTP when not given.", values=("HTTP", "HTTPS"))
    ] = ""
    http_headers: Annotated[list[HTTPHeader], field_doc("Extra headers to send.")] = []


class TCPSocketAction(Wire):
    """Open a TCP connection; success when it is accepted."""

    port: Annotated[
        IntOrString, field_doc("Number or name of the container's port.", required=True)
    ] = 0
    host: Annotated[str, field_doc("Host to connect to; the pod's address when not given.")] = ""


class GRPCAction(Wire):
    """Call the standard gRPC health service."""

    port: Annotated[int, field_doc("Port of the gRPC server.", required=True)] = 0
    service: Annotated[str, field_doc("Service name put in the health request.")] = ""


class SleepAction(Wire):
    """Wait for a number of seconds."""

    seconds: Annotated[int, field_doc("How long to wait, in seconds.", required=True)] = 0


class Probe(Wire):
    """A periodic check of a container. Exactly one of the actions is given."""

    exec: Annotated[ExecAction | None, field_doc("Check by running a command.")] = None
    http_get: Annotated[HTTPGetAction | None, field_doc("Check by an HTTP request.")] = None
    tcp_socket: Annotated[TCPSocketAction | None, field_doc("Check by opening a connection.")] = (
        None
    )
    grpc: Annotated[GRPCAction | None, field_doc("Check by the gRPC health protocol.")] = None
    initial_delay_seconds: Annotated[
        int, field_doc("Seconds after the container's start before the first check.")
    ] = 0
    timeout_seconds: Annotated[
        int | None, field_doc("Seconds after which a check counts as failed; 1 when not given.")
    ] = None
    period_seconds: Annotated[
        int | None, field_doc("Seconds between checks; 10 when not given, at least 1.")
    ] = None
    success_threshold: Annotated[
        int | None,
        field_doc("Consecutive successes after a failure; 1, and only 1 unless readiness."),
    ] = None
    failure_threshold: Annotated[
        int | None, field_doc("Consecutive failures until the probe fails; 3 when not given.")
    ] = None
    termination_grace_period_seconds: Annotated[
        int | None, field_doc("Grace period in seconds if this probe kills the container.")
    ] = None


class LifecycleHandler(Wire):
    """The action of a hook. Exactly one is given."""

    exec: Annotated[ExecAction | None, field_doc("Run a command in the container.")] = None
    http_get: Annotated[HTTPGetAction | None, field_doc("Send an HTTP request.")] = None
    tcp_socket: Annotated[TCPSocketAction | None, field_doc("Not supported.")] = None
    sleep: Annotated[SleepAction | None, field_doc("Wait a number of seconds.")] = None


class Lifecycle(Wire):
    """Hooks after the start and before the stop of a container."""

    post_start: Annotated[
        LifecycleHandler | None,
        field_doc("Run after the container is created; failure kills the container."),
    ] = None
    pre_stop: Annotated[
        LifecycleHandler | None,
        field_doc("Run before the stop signal is sent; counts against the grace period."),
    ] = None
    stop_signal: Annotated[str, field_doc("Signal that asks the container to stop.")] = ""
