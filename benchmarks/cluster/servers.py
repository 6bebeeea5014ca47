"""Starts the servers to measure: the embedded cluster, and a real Kubernetes."""

import atexit
import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from benchmarks import results

GANGLINE = [sys.executable, "-m", "gangline"]
UP = (*GANGLINE, "up")
FAKE_CLUSTER = (sys.executable, "-m", "benchmarks.cluster.fake_cluster")
"""As ``UP``, but its containers are not processes."""

KUBERNETES_BINARIES = Path(os.environ.get("KUBE_BIN", "/var/cache/realkube/bin"))
"""The directory of the real Kubernetes' programs, which the script ``build`` fills."""
KUBERNETES = ("apiserver", "etcd", "kcm")
"""The processes of the real Kubernetes that take part in every write, as named by their pid files.
"""

QUIET_S, QUIET_SHARE, SETTLES_WITHIN_S = 2.0, 0.4, 120.0
STARTS_WITHIN_S = 300.0
"""An embedded cluster may have 100,000 objects to read, on a busy machine."""


def real_kubernetes_scripts() -> Path | None:
    """The directory of the scripts ``build``, ``up`` and ``down``; None if there is none."""
    folder = Path(os.environ.get("GANGLINE_REALKUBE", "../shared/realkube")).resolve()
    return folder if (folder / "up").exists() else None


@cache
def _compiled_modules() -> str:
    """Return a directory for compiled modules, which is deleted when this process exits."""
    folder = tempfile.mkdtemp(prefix="gangline-bytecode-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def run_tool(
    command: Sequence[str | Path], environment: dict[str, str]
) -> tuple[float, float, str]:
    """Run a process; return its wall and processor seconds, and its output.

    Python programs use compiled modules, as after an installation; the first run compiles them.
    """
    with_bytecode = {**environment, "PYTHONPYCACHEPREFIX": _compiled_modules()}
    with_bytecode.pop("PYTHONDONTWRITEBYTECODE", None)
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env=with_bytecode, check=True, capture_output=True, text=True)
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, spent, done.stdout


@contextlib.contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """SIGTERM raises SystemExit meanwhile, so that the processes of a benchmark end with it."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def embedded(
    *arguments: str, program: Sequence[str] = UP, home: str = ""
) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Run ``program`` with ``arguments``; yield the cluster's kubeconfig and process.

    Durability is ``process`` unless ``arguments`` set it: the peers run without fsync, too. The
    cluster is forgotten, unless a directory is given as its ``home``.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_sigterm_unwinds())
        home = home or stack.enter_context(tempfile.TemporaryDirectory())
        log = Path(home, "up.log")
        options = ("--name", "bench", "--port", "0", "--durability", "process")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*program, *options, *arguments],
                env=os.environ | {"GANGLINE_HOME": home},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        kubeconfig = Path(home, "clusters", "bench", "kubeconfig")
        try:
            _wait_for(kubeconfig, process, log)
            yield kubeconfig, process
        finally:
            process.terminate()
            process.wait(60)


def kubernetes_version() -> dict[str, str]:
    """Return the version of the real Kubernetes, for the results of a benchmark."""
    return {"Kubernetes": results.version_of(KUBERNETES_BINARIES / "kube-apiserver", "--version")}


@contextlib.contextmanager
def real_kubernetes(*arguments: str, fsync: bool = False) -> Iterator[Path]:
    """Start the real Kubernetes; yield its kubeconfig. ``fsync``: its etcd syncs each write."""
    scripts = real_kubernetes_scripts()
    if scripts is None:
        sys.exit("no real Kubernetes to compare with: set GANGLINE_REALKUBE to its scripts")
    with _sigterm_unwinds(), tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"KUBE_BIN": str(KUBERNETES_BINARIES), "KUBE_RUN": folder}
        if fsync:
            environment["PATH"] = f"{_syncing_etcd(Path(folder))}:{environment['PATH']}"
        with Path(folder, "scripts.log").open("wb") as log:

            def script(*command: str) -> None:
                subprocess.run(
                    [str(scripts / command[0]), *command[1:]],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=True,
                )

            subprocess.run([scripts / "build"], check=True, env=environment)
            try:
                script("up", *arguments)
                yield Path(folder, "admin.conf")
            finally:
                script("down")


def _syncing_etcd(folder: Path) -> Path:
    """Return a directory with an ``etcd`` that ignores ``--unsafe-no-fsync``, for ``PATH``."""
    etcd = shutil.which("etcd")
    if etcd is None:
        sys.exit("no etcd is installed: Debian has it in the package etcd-server")
    script = folder / "syncing" / "etcd"
    script.parent.mkdir()
    script.write_text(
        "#!/bin/bash\n"
        'for given; do [ "$given" = --unsafe-no-fsync ] || kept+=("$given"); done\n'
        f'exec {etcd} "${{kept[@]}}"\n'
    )
    script.chmod(0o755)
    return script.parent


def install_definitions(kubeconfig: Path, *groups: str) -> None:
    """Install our CRDs in a real Kubernetes; return when they are served and it is idle.

    Args:
        groups: only those of these API groups; none: all.
    """
    folder = Path(__file__).parents[2] / "deploy" / "crds"
    files = [file for name in groups for file in sorted(folder.glob(f"{name}_*.yaml"))]
    kubectl = ["kubectl", "--kubeconfig", str(kubeconfig)]
    named = [argument for file in files or [folder] for argument in ("-f", str(file))]
    subprocess.run([*kubectl, "apply", *named], check=True, stdout=subprocess.DEVNULL)
    for kind in ("podgroups", "queues") if groups else ("pytorchjobs", "podgroups", "queues"):
        ask = [*kubectl, "get", kind]
        while subprocess.run(ask, check=False, capture_output=True).returncode:
            time.sleep(0.1)
    settle(kubeconfig)


def processor_s(pid: int) -> float:
    """Processor seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def kubernetes_processor_s(kubeconfig: Path) -> Counter[str]:
    """Processor seconds that each running process of a real Kubernetes has used so far."""
    files = {name: kubeconfig.parent / f"{name}.pid" for name in KUBERNETES}
    pids = {name: int(file.read_text()) for name, file in files.items()}
    return Counter(
        {name: processor_s(pid) for name, pid in pids.items() if Path(f"/proc/{pid}").exists()}
    )


def settle(kubeconfig: Path) -> None:
    """Wait until the API server of a real Kubernetes is idle.

    After each new CRD it computes the schema of all kinds again, on both processors of a small
    machine
    for ten seconds or more. A measurement in that time would be too slow.
    """
    deadline = time.monotonic() + SETTLES_WITHIN_S
    while time.monotonic() < deadline:
        before = kubernetes_processor_s(kubeconfig)
        time.sleep(QUIET_S)
        if (kubernetes_processor_s(kubeconfig) - before).total() < QUIET_SHARE * QUIET_S:
            return
    sys.exit(f"the real Kubernetes was still busy after {SETTLES_WITHIN_S:.0f} s")


def _wait_for(kubeconfig: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the cluster does not start:\n{log.read_text()}")
        done = kubeconfig.exists() and subprocess.run(
            [*GANGLINE, "list"],
            env=os.environ | {"KUBECONFIG": str(kubeconfig)},
            capture_output=True,
            check=False,
        )
        if done and done.returncode == 0:
            return
        time.sleep(0.1)
