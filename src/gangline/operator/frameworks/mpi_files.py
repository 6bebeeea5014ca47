"""The files that an MPIJob's launcher finds in ``/etc/mpi``, as its ConfigMap holds them."""

import shlex
from collections.abc import Sequence
from importlib.resources import files

MOUNT = "/etc/mpi"
TOOLS = "/opt/kube"
"""Where an init container may leave ``kubectl``."""
HOST_FILE = "hostfile"
DISCOVERY = "discover_hosts.sh"
EXEC = "kubexec.sh"
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


def exec_client() -> str:
    """Read the text of the client that launchers without ``kubectl`` use."""
    return files(__package__).joinpath(EXEC_CLIENT).read_text()


def kubexec(container: str) -> str:
    """Write what ``mpirun`` calls to start something in a container of a worker."""
    return _KUBEXEC.format(
        tools=TOOLS, mount=MOUNT, client=EXEC_CLIENT, container=shlex.quote(container)
    )


def host_file(hosts: Sequence[str], slots: int) -> str:
    """Write the hosts as Open MPI reads them."""
    return "".join(f"{host} slots={slots}\n" for host in hosts)


def discovery(hosts: Sequence[str], slots: int) -> str:
    """Write what elastic Horovod runs to learn which hosts there are now."""
    return "#!/bin/sh\n" + "".join(f"echo {host}:{slots}\n" for host in hosts)
