"""The files of an MPIJob's launcher in ``/etc/mpi``, as stored in its ConfigMap."""

import inspect
import shlex
from collections.abc import Sequence

from gangline.operator.frameworks import kubexec as client

FILES_PATH = "/etc/mpi"
TOOLS_PATH = "/opt/kube"
"""Directory in which an init container may put ``kubectl``."""
HOST_FILE = "hostfile"
DISCOVERY_SCRIPT = "discover_hosts.sh"
EXEC_SCRIPT = "kubexec.sh"
EXEC_CLIENT = "kubexec.py"

_KUBEXEC = """\
#!/bin/sh
# Stands in for rsh: kubexec.sh HOST COMMAND... runs the command in the worker pod of that name.
pod=$1
shift
for kubectl in {tools}/kubectl "$(command -v kubectl)"; do
    if [ -x "$kubectl" ]; then
        exec "$kubectl" exec "$pod" --container {container} -- /bin/sh -c "$*"
    fi
done
for python in python3 python; do
    if command -v "$python" >/dev/null; then
        exec "$python" {mount}/{client} "$pod" {container} /bin/sh -c "$*"
    fi
done
echo "kubexec.sh: cannot reach $pod: the launcher's image has neither kubectl nor Python" >&2
exit 127
"""


def exec_client_source() -> str:
    """Return the source of the client for launchers without ``kubectl``."""
    return inspect.getsource(client)


def exec_script(container: str) -> str:
    """Return the script that ``mpirun`` calls to start a process in a worker's container."""
    return _KUBEXEC.format(
        tools=TOOLS_PATH, mount=FILES_PATH, client=EXEC_CLIENT, container=shlex.quote(container)
    )


def format_host_file(hosts: Sequence[str], slots: int) -> str:
    """Return the hosts in Open MPI's format."""
    return "".join(f"{host} slots={slots}\n" for host in hosts)


def discovery_script(hosts: Sequence[str], slots: int) -> str:
    """Return the script with which elastic Horovod discovers the running hosts."""
    return "#!/bin/sh\n" + "".join(f"echo {host}:{slots}\n" for host in hosts)
