"""A real Kubernetes for the scenarios.

An upstream API server with one real kubelet, made by scripts outside this repository
(``GANGLINE_REALKUBE`` names their folder: ``build``, ``up``, ``down``). Nobody supervises the
servers that the scripts start, as a machine's ``systemd`` would: this does.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from e2e.clusters import START_PATIENCE_S, ClusterUnderTest, Component
from gangline.kube.config.config import load_config

TESTS = Path(__file__).parents[1]
BRIDGE_ADDRESS = "10.244.0.1"
"""The bridge of the pods, as ``up`` creates it: their name server and the API server are here."""
OUR_GROUPS = {
    "kubeflow.org/v1": ("pytorchjobs", "tfjobs"),
    "scheduling.volcano.sh/v1beta1": ("podgroups", "queues"),
}
AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    userGroups: ["system:serviceaccounts"]
  - level: None
"""
IMAGE_STORE_BYTES = 8 << 30
"""Of the node's images and containers: in memory, as much of it as they need."""
STARTS = 3
"""Attempts to start a server that ends during its start: it has no supervisor."""
LAST_WORDS = 2000
"""Characters of the log of an ended server, before its stacks."""


def without_insecure_port(program: Path) -> list[str]:
    """Return the flag that switches the insecure port off, which releases before 1.23 open."""
    described = subprocess.check_output([program, "--help"], text=True)
    return ["--port=0"] if "--port int" in described else []


class Kubernetes(ClusterUnderTest):
    """An upstream Kubernetes with one real node."""

    kind = "kubernetes"
    nodes = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.scripts = Path(os.environ["GANGLINE_REALKUBE"]).resolve()
        self.state = folder / "realkube"
        self.built = {"KUBE_BIN": os.environ.get("KUBE_BIN", "/var/cache/realkube/bin")}
        self.kubeconfig = self.state / "admin.conf"
        self.bridge: subprocess.Popen[bytes] | None = None

    def _script(self, name: str, *arguments: str) -> bool:
        """Run one of the scripts; returns whether it succeeded."""
        policy = self.folder / "audit-policy.yaml"
        policy.write_text(AUDIT_POLICY)
        flags = (
            f"--audit-log-path={self.audit_log} --audit-policy-file={policy} "
            f"--advertise-address={BRIDGE_ADDRESS}"
        )
        known = {"KUBE_RUN": str(self.state), "KUBE_APISERVER_ARGS": flags}
        environment = os.environ | self.built | known
        # The servers that it starts inherit its output: a pipe would never be closed.
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
        return done.returncode == 0

    def _up(self, *arguments: str) -> list[str]:
        """Start the servers that do not run; returns the names and logs of ended ones."""
        ended: list[str] = []
        for _ in range(STARTS):
            ended += self._forget_ended()
            if self.bridge and self.bridge.poll() is not None:
                self._serve_bridge()
            if self._script("up", *arguments):
                return ended
        raise AssertionError("\n".join([(self.folder / "realkube.log").read_text(), *ended]))

    def _forget_ended(self) -> list[str]:
        """Remove the pid files of ended servers: the scripts consider a zombie as running."""
        ended = []
        for note in sorted(self.state.glob("*.pid")):
            if not _runs(int(note.read_text())):
                said = (self.state / f"{note.stem}.log").read_text(errors="replace")
                said = said.partition("\ngoroutine ")[0]
                ended.append(f"{note.stem} had ended: {said[-LAST_WORDS:]}")
                note.unlink()
        return ended

    def start(self) -> None:
        """Build if necessary, start, install our CRDs, start our components."""
        subprocess.run([self.scripts / "build"], check=True, env=os.environ | self.built)
        self._up()
        self._serve_bridge()
        self._mount_image_store()
        self._up("--nodes")
        crds = Path(__file__).parents[2] / "deploy" / "crds"
        self.kubectl("apply", "-f", str(crds))
        # A watch that begins before its CRD is established may get no event for minutes, and
        # discovery lists the kind even later.
        deadline = time.monotonic() + START_PATIENCE_S
        while not self._all_established():
            assert time.monotonic() < deadline, "our kinds are not established"
            time.sleep(0.2)
        while not all(map(self._lists, OUR_GROUPS.items())):
            assert time.monotonic() < deadline, "our kinds are not served"
            time.sleep(0.1)
        for name in ("operator", "scheduler"):
            self.start_component(name)

    def _mount_image_store(self) -> None:
        """Give the node's images a file system of their own.

        A kubelet deletes images once 85 % of the file system that holds them is in use. It
        cannot pull them again here, not even that of the pods' sandboxes, so on a disk that is
        nearly full no pod would start any more. ``down`` unmounts it.
        """
        store = self.state / "cd-root"
        store.mkdir()
        options = f"size={IMAGE_STORE_BYTES},mode=0711"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "images", store], check=True)

    def _all_established(self) -> bool:
        """Whether every CRD is. ``kubectl wait`` of today fails while conditions are null."""
        found = json.loads(self.kubectl("get", "crd", "-o", "json"))["items"]
        given = [each["status"].get("conditions") or () for each in found]
        return all(("Established", "True") in {(c["type"], c["status"]) for c in g} for g in given)

    def _serve_bridge(self) -> None:
        """Start the servers at the bridge; the scripts find and stop them by their pid file."""
        program = [sys.executable, "-m", "e2e.bridge_servers", str(self.kubeconfig), BRIDGE_ADDRESS]
        with (self.state / "dns.log").open("wb") as log:
            self.bridge = subprocess.Popen(program, cwd=TESTS, stderr=log, start_new_session=True)
        (self.state / "dns.pid").write_text(f"{self.bridge.pid}\n")

    def _lists(self, served: tuple[str, Sequence[str]]) -> bool:
        """Whether discovery lists the kinds of a group."""
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
        assert self._script("down", "--purge"), (self.folder / "realkube.log").read_text()
        if self.bridge:
            self.bridge.wait(60)

    def restart_api_server(self) -> None:
        """Kill only the API server; its state is in etcd, nodes and pods continue."""
        note = self.state / "apiserver.pid"
        os.kill(int(note.read_text()), signal.SIGKILL)
        note.unlink()
        # A killed process ends when its memory is released; until then its port is in use.
        address = urlsplit(load_config(str(self.kubeconfig)).server)
        deadline = time.monotonic() + START_PATIENCE_S
        while not _is_free(address.hostname or "", address.port or 443):
            assert time.monotonic() < deadline, f"{address.netloc} is still taken"
            time.sleep(0.01)
        self._up("--nodes")

    def revive(self) -> list[str]:
        """Start our components and the servers of the cluster that have ended.

        One is to be expected: ``up --nodes`` writes kube-proxy's configuration anew, and a running
        kube-proxy ends when that happens.
        """
        whole = all(_runs(int(note.read_text())) for note in self.state.glob("*.pid"))
        ended = [] if whole else self._up("--nodes")
        return ended + super().revive()

    def load(self, archive: Path, image: str) -> None:
        """Give the node an image that it cannot pull."""
        self.containerd("images", "import", str(archive))
        listed = self.containerd("images", "list", "-q")
        assert f"docker.io/library/{image}" in listed.split()

    def containerd(self, *arguments: str) -> str:
        """Run a command of the node's containerd; return what it printed."""
        command = ["ctr", "--address", str(self.state / "containerd.sock"), "-n", "k8s.io"]
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def default_scheduler(self) -> Iterator[None]:
        """Kubernetes' scheduler, for other pods."""
        program = Path(self.built["KUBE_BIN"], "kube-scheduler")
        flags = [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false"]
        flags += without_insecure_port(program)
        scheduler = Component([str(program), *flags], {}, self.folder / "kube-scheduler.log")
        try:
            yield
        finally:
            scheduler.stop()

    @staticmethod
    def host_folders() -> dict[str, str]:
        """Mounts of this machine's Python in the empty image."""
        folders = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64", "/bin": "/usr/bin"}
        for prefix in (sys.base_prefix, sys.prefix):
            if not prefix.startswith("/usr/"):
                folders[prefix] = prefix
        return folders

    def python(self, script: Path, *arguments: str) -> dict[str, Any]:
        """An empty image with read-only mounts of this machine's Python."""
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


def _runs(process: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def _is_free(host: str, port: int) -> bool:
    """Whether the port is free."""
    try:
        with socket.create_server((host, port)):
            return True
    except OSError:
        return False
