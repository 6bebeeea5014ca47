"""The clusters of the scenarios: their common interface, and the embedded one.

On each, operator and scheduler run as processes of their own, so that scenarios can kill them one
by one.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from e2e import component_rights

GANGLINE = [sys.executable, "-m", "gangline"]

START_PATIENCE_S = 120


class Component:
    """A process with its output in a file."""

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
        """Stop the process and wait for it; it is killed after a timeout."""
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
        """Environment variables for a client of this cluster."""
        return {"KUBECONFIG": str(self.kubeconfig), "GANGLINE_HOME": str(self.folder / "home")}

    def start(self) -> None:
        """Start the cluster, then operator and scheduler."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop all started processes."""
        for component in reversed(self.components.values()):
            component.stop()

    def restart_api_server(self) -> None:
        """Kill the API server and restart it on the same state."""
        raise NotImplementedError

    def revive(self) -> list[str]:
        """Start our components and the servers of the cluster that have ended.

        Returns:
            The servers, each with what it said last.
        """
        for name in ("operator", "scheduler"):
            if name not in self.components or not self.components[name].alive:
                self.start_component(name)
        return []

    def start_component(
        self,
        name: str,
        kubeconfig: Path | None = None,
        *,
        arguments: Sequence[str] = (),
        copy: str = "",
    ) -> Component:
        """Start our ``operator`` or ``scheduler``.

        Args:
            name: which.
            kubeconfig: another one than that with the component's rights.
            arguments: its flags.
            copy: told apart from other copies by this.
        """
        known = self.environment | {"KUBECONFIG": str(kubeconfig or self.component_config(name))}
        component = Component(
            [*GANGLINE, name, *arguments],
            known,
            self.folder / f"{name}{copy}.log",
        )
        self.components[name + copy] = component
        return component

    def component_config(self, name: str) -> Path:
        """A kubeconfig with the rights that ``deploy`` gives to a component."""
        file = self.folder / f"{name}.kubeconfig"
        if not file.exists():
            component_rights.install(self.kubeconfig)
            component_rights.write_kubeconfig(self.kubeconfig, name, file)
        return file

    @property
    def audit_log(self) -> Path:
        """Where the API server records the calls of service accounts."""
        return self.folder / "audit.log"

    def stop_component(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop one of our components."""
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
        # Scenarios of the Brain start their own, which must lead.
        arguments.append("--no-record")
        arguments += ["--audit-log", str(self.audit_log), "--audit-log-maxsize", "100000"]
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
        """The API server is part of ``gangline up``, which is killed with all of its pods."""
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


def _ups(log: Path) -> int:
    """How often ``gangline up`` has reported that the cluster is up."""
    return log.read_text().count("Cluster is up") if log.exists() else 0


def _free_port() -> str:
    """A free port, so that a restarted server keeps its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])
