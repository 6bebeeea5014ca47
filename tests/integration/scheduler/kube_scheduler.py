"""The real kube-scheduler on nodes that exist only in its API server.

Scripts outside this repository start etcd and the API server (``GANGLINE_REALKUBE`` names their
folder). An extender of the scheduler sees which nodes its filters leave for each pod.
"""

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kubernetes import client, config

from e2e.kubernetes_cluster import without_insecure_port
from gangline.elastic.agent.rendezvous import free_port
from unit.scheduler.kube_scheduler import (
    NAMESPACES,
    PRIORITIES,
    RECORDED,
    Json,
    KubeDecision,
    filter_scene,
    node_manifest,
    pod_manifest,
    preemption_scene,
)

SCRIPTS = Path(os.environ.get("GANGLINE_REALKUBE", "/nowhere")).resolve()
PROGRAMS = Path(os.environ.get("KUBE_BIN", "/var/cache/realkube/bin"))
PATIENCE_S = 60.0
PATIENT = "-patient"
"""Suffix of priority classes that never preempt."""
FILTER_SEEDS, PREEMPTION_SEEDS = range(50), range(20)
"""Seeds of the recorded scenes."""


@dataclass(slots=True)
class ExtenderState:
    """Pods by ``namespace/name``."""

    feasible: dict[str, list[str]] = field(default_factory=dict)
    """The nodes that the filters of the scheduler left for each pod."""
    pinned: dict[str, str] = field(default_factory=dict)
    """The only node that a pod may have."""


class KubeScheduler:
    """Asks the real scheduler about one pod after the other."""

    def __init__(self, kubeconfig: Path, extender: ExtenderState) -> None:
        self._extender = extender
        self._connected = config.new_client_from_config(str(kubeconfig))
        self.core = client.CoreV1Api(self._connected)
        scheduling = client.SchedulingV1Api(self._connected)
        for name in NAMESPACES:
            self.core.create_namespace({"metadata": {"name": name}})
        for name, value in PRIORITIES.items():
            for class_, policy in ((name, "PreemptLowerPriority"), (name + PATIENT, "Never")):
                metadata = {"name": class_}
                scheduling.create_priority_class(
                    {"metadata": metadata, "value": value, "preemptionPolicy": policy}
                )

    def close(self) -> None:
        self._connected.close()

    def clear(self) -> None:
        """Remove all nodes and pods."""
        for namespace in NAMESPACES:
            self.core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
            self._until(lambda ns=namespace: not self.core.list_namespaced_pod(ns).items)  # type: ignore[misc]
        self.core.delete_collection_node()
        self._extender.feasible.clear()

    def add_nodes(self, nodes: list[Json]) -> None:
        """Make the nodes; returns when the scheduler has seen all of them, and no other."""
        for node in nodes:
            self.core.create_node(node_manifest(node))
        names = sorted(node["name"] for node in nodes)
        self._until(lambda: self._probe() == names)

    def _probe(self) -> list[str]:
        """Return the nodes that the scheduler knows."""
        tolerant = {"name": "probe", "tolerations": [{"operator": "Exists"}]}
        decision = self.schedule(tolerant)
        self.delete(tolerant)
        return decision.feasible

    def schedule(self, pod: Json, pinned: str = "") -> KubeDecision:
        """Create a pod and return what becomes of it. One that finds no node is left pending.

        Args:
            pinned: the only node that it may have; empty: any.
        """
        made = pod_manifest(pod)
        name, namespace = made["metadata"]["name"], made["metadata"]["namespace"]
        before = self.terminating()
        self._extender.feasible.pop(f"{namespace}/{name}", None)
        self._extender.pinned[f"{namespace}/{name}"] = pinned
        self.core.create_namespaced_pod(namespace, made)
        decided: list[Any] = []

        def is_decided() -> bool:
            now = self.core.read_namespaced_pod(name, namespace)
            decided[:] = [now]
            return bool(now.spec.node_name or now.status.conditions)

        self._until(is_decided)
        (now,) = decided
        return KubeDecision(
            sorted(self._extender.feasible.get(f"{namespace}/{name}", [])),
            now.spec.node_name or "",
            now.status.nominated_node_name or "",
            sorted(self.terminating() - before),
        )

    def play(self, scene: Json) -> Json:
        """Return a scene of filters with the decisions."""
        self.clear()
        self.add_nodes(scene["nodes"])
        bound: dict[str, Json] = {}
        steps: list[Any] = []
        for step in scene["steps"]:
            if isinstance(step, str):
                if step in bound:
                    self.delete(bound[step], grace_s=30)
                    steps.append(step)
                continue
            pod = {"name": f"p{len(steps)}"} | scene["pods"][step]
            decision = self.schedule(pod)
            steps.append([step, decision.feasible, decision.node])
            if decision.node:
                bound[pod["name"]] = pod
            else:
                self.delete(pod)
        return scene | {"steps": steps}

    def fill(self, scene: Json) -> Json:
        """Make nodes and running pods of a scene of preemption; return it with their nodes.

        A scene that has these is made again.
        """
        self.clear()
        self.add_nodes(scene["nodes"])
        steps = []
        for step in scene["steps"]:
            pod, node = step if isinstance(step, list) else (step, "")
            decision = self.schedule(_patient(pod), node)
            assert decision.node or not node, (pod, node, decision)
            if decision.node:
                steps.append([pod, decision.node])
            else:
                self.delete(pod)
        return scene | {"steps": steps}

    def preempt(self, filled: Json) -> Json:
        """Return a filled scene with what becomes of its claimant."""
        decision = self.schedule(filled["claimant"])
        return filled | {
            "node": decision.node,
            "nominated": decision.nominated,
            "victims": decision.victims,
        }

    def fits_without(self, filled: Json, victims: Collection[str]) -> list[str]:
        """Return where the claimant of a filled scene fits when these pods have ended."""
        for pod, _ in filled["steps"]:
            if pod["name"] in victims:
                self.delete(pod)
        return self.schedule(_patient(filled["claimant"])).feasible

    def terminating(self) -> set[str]:
        """Names of pods that are being deleted."""
        pods = [pod for ns in NAMESPACES for pod in self.core.list_namespaced_pod(ns).items]
        return {pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp is not None}

    def delete(self, pod: Json, grace_s: int = 0) -> None:
        """Delete a pod; with a grace period it is left terminating, as no kubelet ends it."""
        namespace = pod.get("namespace", NAMESPACES[0])
        self.core.delete_namespaced_pod(pod["name"], namespace, grace_period_seconds=grace_s)

    @staticmethod
    def _until(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, "the scheduler does not decide"
            time.sleep(0.005)


def _patient(pod: Json) -> Json:
    return pod | {"priority": pod["priority"] + PATIENT}


@contextmanager
def kube_scheduler(folder: Path) -> Iterator[KubeScheduler]:
    """Start the servers and the scheduler."""
    with ExitStack() as stack:
        stack.callback(stop_servers, folder)
        # Nodes without a kubelet: no plug-in waits for a controller, and none runs.
        plugins = "ServiceAccount,TaintNodesByCondition,DefaultTolerationSeconds"
        kubeconfig = start_servers(folder, f"--disable-admission-plugins={plugins}")
        extender = ExtenderState()
        address = stack.enter_context(_serve(extender))
        stack.enter_context(_scheduler(folder, kubeconfig, address))
        scheduler = KubeScheduler(kubeconfig, extender)
        stack.callback(scheduler.close)
        yield scheduler


def start_servers(folder: Path, *flags: str) -> Path:
    """Start etcd and the API server, without controllers. Returns the kubeconfig."""
    etcd = free_port()
    environment = os.environ | {
        "KUBE_RUN": str(folder),
        "KUBE_PORT": str(free_port()),
        "ETCD_PORT": str(etcd),
        "KUBE_APISERVER_ARGS": " ".join(flags),
    }
    # The servers that it starts inherit its output: a pipe would never be closed.
    with (folder / "up.log").open("wb") as log:
        subprocess.run(
            [SCRIPTS / "up"],
            env=environment,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    _end(folder / "kcm.pid")
    return folder / "admin.conf"


def stop_servers(folder: Path) -> None:
    # Not by the script "down", which also removes the network of any other cluster.
    for name in ("kcm", "apiserver", "etcd"):
        _end(folder / f"{name}.pid")


def _end(note: Path) -> None:
    if note.exists():
        with suppress(ProcessLookupError):
            os.kill(int(note.read_text()), signal.SIGKILL)
        note.unlink()


@contextmanager
def _scheduler(folder: Path, kubeconfig: Path, extender: str) -> Iterator[None]:
    address = f"127.0.0.1:{free_port()}"
    content = {
        "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 1000},
        "leaderElection": {"leaderElect": False},
        "healthzBindAddress": address,
        "metricsBindAddress": address,
        "extenders": [{"urlPrefix": extender, "filterVerb": "filter", "nodeCacheCapable": True}],
    }
    file = folder / "scheduler.json"
    file.write_text(json.dumps(content))
    program = PROGRAMS / "kube-scheduler"
    flags = [f"--config={file}", *without_insecure_port(program), "--secure-port=0"]
    with (folder / "scheduler.log").open("wb") as log:
        process = subprocess.Popen([program, *flags], stdout=log, stderr=log)
    try:
        yield
        assert process.poll() is None, (folder / "scheduler.log").read_text()[-4000:]
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def _serve(extender: ExtenderState) -> Iterator[str]:
    """Serve the extender, which records the nodes of each pod; yield its address."""

    class Recorder(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            lower = {key.lower(): value for key, value in asked.items()}
            meta = lower["pod"]["metadata"]
            key, nodes = f"{meta['namespace']}/{meta['name']}", lower["nodenames"]
            extender.feasible[key] = nodes
            pinned = extender.pinned.get(key)
            body = json.dumps({"nodenames": [n for n in nodes if pinned in ("", n)]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def record() -> None:
    """Write the scenes of the first seeds, one a line, for tests that have no kube-scheduler."""
    with tempfile.TemporaryDirectory() as folder, kube_scheduler(Path(folder)) as scheduler:
        scenes = {
            "filters": [scheduler.play(filter_scene(seed)) for seed in FILTER_SEEDS],
            "preemption": [
                scheduler.preempt(scheduler.fill(preemption_scene(seed)))
                for seed in PREEMPTION_SEEDS
            ],
        }
    kinds = (
        f'"{kind}": [\n'
        + ",\n".join(json.dumps(scene, separators=(",", ":")) for scene in recorded)
        for kind, recorded in scenes.items()
    )
    RECORDED.write_text("{" + "],\n".join(kinds) + "]}\n")


if __name__ == "__main__":
    record()
