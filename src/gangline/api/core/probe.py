"""Actions of a kubelet on a running container: probes and lifecycle hooks."""

from typing import Annotated

from gangline.api.meta.field_doc import IntOrString, doc
from gangline.api.meta.objects import Wire


class ExecAction(Wire):
    """Run a command inside the container; exit code 0 means success."""

    command: Annotated[
        list[str], doc("Program and arguments, run without a shell in the container.")
    ] = []


class HTTPHeader(Wire):
    """One header sent with a probe's request."""

    name: Annotated[str, doc("Name of the header.", required=True)] = ""
    value: Annotated[str, doc("Value of the header.", required=True)] = ""


class HTTPGetAction(Wire):
    """Send an HTTP GET request; a status code from 200 to 399 means success."""

    path: Annotated[str, doc("Path of the request; / when not given.")] = ""
    port: Annotated[IntOrString, doc("Number or name of the container's port.", required=True)] = 0
    host: Annotated[str, doc("Host to connect to; the pod's address when not given.")] = ""
    scheme: Annotated[str, doc("Protocol; HTTP when not given.", values=("HTTP", "HTTPS"))] = ""
    http_headers: Annotated[list[HTTPHeader], doc("Extra headers to send.")] = []


class TCPSocketAction(Wire):
    """Open a TCP connection; success when it is accepted."""

    port: Annotated[IntOrString, doc("Number or name of the container's port.", required=True)] = 0
    host: Annotated[str, doc("Host to connect to; the pod's address when not given.")] = ""


class GRPCAction(Wire):
    """Call the standard gRPC health service."""

    port: Annotated[int, doc("Port of the gRPC server.", required=True)] = 0
    service: Annotated[str, doc("Service name put in the health request.")] = ""


class SleepAction(Wire):
    """Wait for a number of seconds."""

    seconds: Annotated[int, doc("How long to wait, in seconds.", required=True)] = 0


class Probe(Wire):
    """A periodic check of a container. Exactly one of the actions is given."""

    exec: Annotated[ExecAction | None, doc("Check by running a command.")] = None
    http_get: Annotated[HTTPGetAction | None, doc("Check by an HTTP request.")] = None
    tcp_socket: Annotated[TCPSocketAction | None, doc("Check by opening a connection.")] = None
    grpc: Annotated[GRPCAction | None, doc("Check by the gRPC health protocol.")] = None
    initial_delay_seconds: Annotated[
        int, doc("Seconds after the container's start before the first check.")
    ] = 0
    timeout_seconds: Annotated[
        int | None, doc("Seconds after which a check counts as failed; 1 when not given.")
    ] = None
    period_seconds: Annotated[
        int | None, doc("Seconds between checks; 10 when not given, at least 1.")
    ] = None
    success_threshold: Annotated[
        int | None,
        doc("Consecutive successes after a failure; 1, and only 1 unless readiness."),
    ] = None
    failure_threshold: Annotated[
        int | None, doc("Consecutive failures until the probe fails; 3 when not given.")
    ] = None
    termination_grace_period_seconds: Annotated[
        int | None, doc("Grace period in seconds if this probe kills the container.")
    ] = None


class LifecycleHandler(Wire):
    """The action of a hook. Exactly one is given."""

    exec: Annotated[ExecAction | None, doc("Run a command in the container.")] = None
    http_get: Annotated[HTTPGetAction | None, doc("Send an HTTP request.")] = None
    tcp_socket: Annotated[TCPSocketAction | None, doc("Not supported.")] = None
    sleep: Annotated[SleepAction | None, doc("Wait a number of seconds.")] = None


class Lifecycle(Wire):
    """Hooks after the start and before the stop of a container."""

    post_start: Annotated[
        LifecycleHandler | None,
        doc("Run after the container is created; failure kills the container."),
    ] = None
    pre_stop: Annotated[
        LifecycleHandler | None,
        doc("Run before the stop signal is sent; counts against the grace period."),
    ] = None
    stop_signal: Annotated[str, doc("Signal that asks the container to stop.")] = ""
