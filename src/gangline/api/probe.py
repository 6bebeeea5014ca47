"""Actions of a kubelet on a running container: probes and lifecycle hooks."""

from typing import Annotated

from gangline.api.describe import IntOrString, about
from gangline.api.meta import Wire


class ExecAction(Wire):
    """Run a command inside the container; exit code 0 means success."""

    command: Annotated[
        list[str], about("Program and arguments, run without a shell in the container.")
    ] = []


class HTTPHeader(Wire):
    """One header sent with a probe's request."""

    name: Annotated[str, about("Name of the header.", required=True)] = ""
    value: Annotated[str, about("Value of the header.", required=True)] = ""


class HTTPGetAction(Wire):
    """Send an HTTP GET request; a status code from 200 to 399 means success."""

    path: Annotated[str, about("Path of the request; / when not given.")] = ""
    port: Annotated[
        IntOrString, about("Number or name of the container's port.", required=True)
    ] = 0
    host: Annotated[str, about("Host to connect to; the pod's address when not given.")] = ""
    scheme: Annotated[str, about("Protocol; HTTP when not given.", values=("HTTP", "HTTPS"))] = ""
    http_headers: Annotated[list[HTTPHeader], about("Extra headers to send.")] = []


class TCPSocketAction(Wire):
    """Open a TCP connection; success when it is accepted."""

    port: Annotated[
        IntOrString, about("Number or name of the container's port.", required=True)
    ] = 0
    host: Annotated[str, about("Host to connect to; the pod's address when not given.")] = ""


class GRPCAction(Wire):
    """Call the standard gRPC health service."""

    port: Annotated[int, about("Port of the gRPC server.", required=True)] = 0
    service: Annotated[str, about("Service name put in the health request.")] = ""


class SleepAction(Wire):
    """Wait for a number of seconds."""

    seconds: Annotated[int, about("How long to wait, in seconds.", required=True)] = 0


class Probe(Wire):
    """A periodic check of a container. Exactly one of the actions is given."""

    exec: Annotated[ExecAction | None, about("Check by running a command.")] = None
    http_get: Annotated[HTTPGetAction | None, about("Check by an HTTP request.")] = None
    tcp_socket: Annotated[TCPSocketAction | None, about("Check by opening a connection.")] = None
    grpc: Annotated[GRPCAction | None, about("Check by the gRPC health protocol.")] = None
    initial_delay_seconds: Annotated[
        int, about("Seconds after the container's start before the first check.")
    ] = 0
    timeout_seconds: Annotated[
        int | None, about("Seconds after which a check counts as failed; 1 when not given.")
    ] = None
    period_seconds: Annotated[
        int | None, about("Seconds between checks; 10 when not given, at least 1.")
    ] = None
    success_threshold: Annotated[
        int | None,
        about("Consecutive successes after a failure; 1, and only 1 unless readiness."),
    ] = None
    failure_threshold: Annotated[
        int | None, about("Consecutive failures until the probe fails; 3 when not given.")
    ] = None
    termination_grace_period_seconds: Annotated[
        int | None, about("Grace period in seconds if this probe kills the container.")
    ] = None


class LifecycleHandler(Wire):
    """The action of a hook. Exactly one is given."""

    exec: Annotated[ExecAction | None, about("Run a command in the container.")] = None
    http_get: Annotated[HTTPGetAction | None, about("Send an HTTP request.")] = None
    tcp_socket: Annotated[TCPSocketAction | None, about("Not supported.")] = None
    sleep: Annotated[SleepAction | None, about("Wait a number of seconds.")] = None


class Lifecycle(Wire):
    """Hooks after the start and before the stop of a container."""

    post_start: Annotated[
        LifecycleHandler | None,
        about("Run after the container is created; failure kills the container."),
    ] = None
    pre_stop: Annotated[
        LifecycleHandler | None,
        about("Run before the stop signal is sent; counts against the grace period."),
    ] = None
    stop_signal: Annotated[str, about("Signal that asks the container to stop.")] = ""
