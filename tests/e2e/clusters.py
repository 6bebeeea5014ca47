"""The two clusters that the scenarios run on, behind one interface.

``Embedded`` is ``gangline up``. ``Kubernetes`` is an upstream API server with one real kubelet,
made by scripts outside this repository (``GANGLINE_REALKUBE`` names their folder: ``build``,
``up``, ``down``). On both, operator and scheduler run as processes of their own, so that scenarios
can kill them one by one.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

GANGLINE = [sys.executable, "-m", "gangline"]
TESTS = Path(__file__).parents[1]
DNS_ADDRESS = "10.244.0.1"
"""The bridge of the pods, as ``up`` lays it."""

OUR_GROUPS = {
    "kubeflow.org/v1": ("pytorchjobs", "tfjobs"),
    "scheduling.volcano.sh/v1beta1": ("podgroups", "queues"),
}
START_PATIENCE_S = 120


class Component:
    """A process of ours, with its output in a file."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                arguments,
                env=os.environ | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the process and wait for it; one that does not go in time is killed."""
        if self.alive:
            self.process.send_signal(how)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)


class ClusterUnderTest:
    """A running cluster with our operator and scheduler on it."""

    kind: ClassVar[str]
    nodes: ClassVar[int]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.components: dict[str, Component] = {}
        self.kubeconfig = folder / "kubeconfig"

    @property
    def environment(self) -> dict[str, str]:
        """What a client of this cluster needs in its environment."""
        return {"KUBECONFIG": str(self.kubeconfig), "GANGLINE_HOME": str(self.folder / "home")}

    def start(self) -> None:
        """Start the cluster, then operator and scheduler."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop everything that was started."""
        for component in reversed(self.components.values()):
            component.stop()

    def restart_api_server(self) -> None:
        """Kill the API server and start it again on the same state."""
        raise NotImplementedError

    def start_component(
        self,
        name: str,
        kubeconfig: Path | None = None,
        *,
        arguments: Sequence[str] = (),
        copy: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Component:
        """Start our ``operator`` or ``scheduler``.

        Args:
            name: which.
            kubeconfig: another one than the cluster's own.
            arguments: its flags.
            copy: told apart from other copies by this.
            environment: further variables.
        """
        known = self.environment | ({"KUBECONFIG": str(kubeconfig)} if kubeconfig else {})
        component = Component(
            [*GANGLINE, name, *arguments],
            known | dict(environment or {}),
            self.folder / f"{name}{copy}.log",
        )
        self.components[name + copy] = component
        return component

    def stop_component(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End one of our components."""
        self.components.pop(name).stop(how)

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a ``gangline`` command against this cluster."""
        return subprocess.run(
            [*GANGLINE, *arguments],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=120,
        )

    def python(self, script: Path, *arguments: str) -> dict[str, Any]:
        """A pod spec that runs ``script`` with the Python of this test on this cluster."""
        raise NotImplementedError


class Embedded(ClusterUnderTest):
    """``gangline up`` with three virtual nodes."""

    kind = "embedded"
    nodes = 3

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = _free_port()

    def start(self) -> None:
        """Start the cluster on a free port, then our components."""
        self._up()
        for name in ("operator", "scheduler"):
            self.start_component(name)

    def _up(self) -> None:
        started = time.monotonic()
        log = self.folder / "up.log"
        ups = _ups(log)
        arguments = ["up", "--name", "e2e", "--nodes", str(self.nodes), "--port", self.port]
        component = Component(
            [*GANGLINE, *arguments, "--without", "operator", "--without", "scheduler"],
            {"GANGLINE_HOME": str(self.folder / "home")},
            log,
        )
        self.components["up"] = component
        written = self.folder / "home" / "clusters" / "e2e" / "kubeconfig"
        while _ups(log) == ups:
            if not component.alive or time.monotonic() - started > START_PATIENCE_S:
                raise AssertionError(f"gangline up failed:\n{component.log.read_text()}")
            time.sleep(0.1)
        self.kubeconfig = written

    def restart_api_server(self) -> None:
        """The API server is part of ``gangline up``: kill that with all of its pods."""
        self.stop_component("up", signal.SIGKILL)
        self._up()

    def python(self, script: Path, *arguments: str) -> dict[str, Any]:
        """No image is needed: a pod runs in the Python environment of the cluster."""
        container = {
            "name": "pytorch",
            "image": "gangline/examples-pytorch:1",
            "command": ["python", str(script), *arguments],
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
            "volumeMounts": [{"name": "script", "mountPath": str(script.parent), "readOnly": True}],
        }
        return {
            "containers": [container],
            "volumes": [{"name": "script", "hostPath": {"path": str(script.parent)}}],
            "terminationGracePeriodSeconds": 1,
        }


class Kubernetes(ClusterUnderTest):
    """An upstream Kubernetes with one real node."""

    kind = "kubernetes"
    nodes = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.scripts = Path(os.environ["GANGLINE_REALKUBE"]).resolve()
        self.state = folder / "realkube"
        self.built = {"KUBE_BIN": os.environ.get("KUBE_BIN", "/var/cache/gangline-realkube/bin")}
        self.kubeconfig = self.state / "admin.conf"
        self.names: subprocess.Popen[bytes] | None = None

    def _script(self, name: str, *arguments: str) -> None:
        environment = os.environ | self.built | {"KUBE_RUN": str(self.state)}
        # The servers it starts keep its output open: a file, where a pipe would never end.
        log = self.folder / "realkube.log"
        with log.open("ab") as output:
            done = subprocess.run(
                [str(self.scripts / name), *arguments],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=900,
            )
        assert done.returncode == 0, log.read_text()

    def start(self) -> None:
        """Build where needed, start, install our resource definitions, start our components."""
        tools = Path(__file__).parents[2] / "tools"
        subprocess.run(
            [tools / "realkube-build", self.scripts], check=True, env=os.environ | self.built
        )
        self._script("up")
        self._serve_names()
        self._script("up", "--nodes")
        crds = Path(__file__).parents[2] / "deploy" / "crds"
        self.kubectl("apply", "-f", str(crds))
        # A watch of a kind that begins before its definition is settled may hear nothing for
        # minutes, and what discovery lists comes later still.
        self.kubectl("wait", "--for", "condition=established", "--timeout=100s", "crd", "--all")
        deadline = time.monotonic() + START_PATIENCE_S
        while not all(map(self._lists, OUR_GROUPS.items())):
            assert time.monotonic() < deadline, "our kinds are not served"
            time.sleep(0.1)
        for name in ("operator", "scheduler"):
            self.start_component(name)

    def _serve_names(self) -> None:
        """Start a name server; the scripts find it by its note, and end it in the end."""
        program = [sys.executable, "-m", "e2e.cluster_dns", str(self.kubeconfig), DNS_ADDRESS]
        with (self.state / "dns.log").open("wb") as log:
            self.names = subprocess.Popen(program, cwd=TESTS, stderr=log, start_new_session=True)
        (self.state / "dns.pid").write_text(f"{self.names.pid}\n")

    def _lists(self, served: tuple[str, Sequence[str]]) -> bool:
        """Whether discovery knows the kinds of a group."""
        group, kinds = served
        ask = ["kubectl", "--kubeconfig", str(self.kubeconfig), "get", "--raw", f"/apis/{group}"]
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
        return done.returncode == 0 and all(f'"{kind}"' in done.stdout for kind in kinds)

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl against this cluster; return what it printed."""
        done = subprocess.run(
            ["kubectl", "--kubeconfig", str(self.kubeconfig), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> None:
        """Stop our components, then the cluster, and forget its state."""
        super().stop()
        self._script("down", "--purge")
        if self.names:
            self.names.wait(60)

    def restart_api_server(self) -> None:
        """Kill the API server alone; its state is in etcd, nodes and pods go on."""
        note = self.state / "apiserver.pid"
        os.kill(int(note.read_text()), signal.SIGKILL)
        note.unlink()  # else a zombie that nobody has reaped yet passes for a running server
        self._script("up", "--nodes")

    def load(self, archive: Path, image: str) -> None:
        """Give the node an image that it cannot pull."""
        containers = ["ctr", "--address", str(self.state / "containerd.sock"), "-n", "k8s.io"]
        subprocess.run(
            [*containers, "images", "import", str(archive)],
            check=True,
            capture_output=True,
            timeout=300,
        )
        listed = subprocess.check_output([*containers, "images", "list", "-q"], text=True)
        assert f"docker.io/library/{image}" in listed.split()

    @contextmanager
    def default_scheduler(self) -> Iterator[None]:
        """Kubernetes' own scheduler, for pods that are not ours."""
        program = Path(self.built["KUBE_BIN"], "kube-scheduler")
        flags = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--port=0"]
        scheduler = Component([str(program), *flags], {}, self.folder / "kube-scheduler.log")
        try:
            yield
        finally:
            scheduler.stop()

    @staticmethod
    def host_folders() -> dict[str, str]:
        """What fills the empty image with this machine's Python: mount points and folders."""
        folders = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64", "/bin": "/usr/bin"}
        for prefix in (sys.base_prefix, sys.prefix):
            if not prefix.startswith("/usr/"):
                folders[prefix] = prefix
        return folders

    def python(self, script: Path, *arguments: str) -> dict[str, Any]:
        """An empty image, filled with read-only mounts of this machine's Python."""
        folders = self.host_folders()
        if not str(script.parent).startswith("/usr/"):
            folders[str(script.parent)] = str(script.parent)
        mounts = [
            {"name": f"host{number}", "mountPath": folder, "readOnly": True}
            for number, folder in enumerate(folders)
        ]
        volumes = [
            {"name": f"host{number}", "hostPath": {"path": source}}
            for number, source in enumerate(folders.values())
        ]
        path = ":".join([f"{sys.prefix}/bin", f"{sys.base_prefix}/bin", "/usr/bin", "/bin"])
        container = {
            "name": "pytorch",
            "image": "hostroot:1",
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", str(script), *arguments],
            "env": [{"name": "PATH", "value": path}, {"name": "OMP_NUM_THREADS", "value": "1"}],
            "volumeMounts": mounts,
        }
        return {
            "containers": [container],
            "volumes": volumes,
            "terminationGracePeriodSeconds": 1,
        }


def _ups(log: Path) -> int:
    """How often ``gangline up`` has said that the cluster is up."""
    return log.read_text().count("Cluster is up") if log.exists() else 0


def _free_port() -> str:
    """A port that nobody listens on now, so that a restarted server keeps its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])
