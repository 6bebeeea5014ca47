"""Deprecated module paths of the public SDK: each one can still be imported, with a warning.

``gangline.sdk`` installs the finder, since Python imports that package before any module in it. An
old path gives a module without code of its own, which resolves names in the module's new place.
The paths are dropped in the release after the next one.
"""

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple


class MovedModule(NamedTuple):
    """Where a module is now."""

    path: str
    names: Mapping[str, str] = MappingProxyType({})
    """New name by old name; other names are unchanged."""


_SDK: Mapping[str, MovedModule] = {
    "boards": MovedModule(
        "addresses.tensorboard",
        {"board_address": "tensorboard_address", "address_of": "service_address"},
    ),
    "changes": MovedModule(
        "job_editor", {"BELONGS_ANNOTATION": "OWNER_ANNOTATION", "Changes": "JobEditor"}
    ),
    "checks": MovedModule(
        "cluster_checks.checks",
        {
            "Check": "ClusterCheckResult",
            "Facts": "ClusterFacts",
            "Verdict": "CheckStatus",
            "check_all": "run_checks",
        },
    ),
    "doctor": MovedModule("cluster_checks.run", {"examine": "check_cluster"}),
    "evidence": MovedModule(
        "diagnosis.inputs", {"MOST_LOGS": "MAX_LOGS", "diagnosed": "diagnose_job"}
    ),
    "gpu_usage": MovedModule(
        "usage",
        {
            "BUSY": "UTILIZATION",
            "PATIENCE_S": "EXPORTER_TIMEOUT_S",
            "read_devices": "parse_exporter",
            "read_exporters": "sum_exporters",
        },
    ),
    "line_queue": MovedModule("logs", {"QUEUED_LINES": "MAX_QUEUED_LINES"}),
    "listed": MovedModule("lean_pods"),
    "places": MovedModule(
        "addresses.port_targets", {"Place": "PortTarget", "find_place": "resolve_port_target"}
    ),
    "symptoms": MovedModule("diagnosis.symptoms"),
    "waiting": MovedModule(
        "diagnosis.pending", {"Cause": "PendingCause", "waiting_cause": "find_pending_cause"}
    ),
    "written": MovedModule(
        "manifests",
        {
            "as_written": "to_submittable",
            "renamed": "rename_objects",
            "replicas_of": "replica_count",
            "roles": "iterate_roles",
        },
    ),
}


class _MovedModuleFinder:
    """Finder and loader, without the base classes of ``importlib.abc``: every command imports this
    module, and that one imports the reading of archives."""

    def __init__(self, package: str, moved: Mapping[str, MovedModule]) -> None:
        self._package = package
        self._moved = {f"{package}.{name}": module for name, module in moved.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        loader: Any = self
        return ModuleSpec(fullname, loader) if fullname in self._moved else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        moved = self._moved[module.__name__]
        new_path = f"{self._package}.{moved.path}"
        warnings.warn(f"{module.__name__} is now {new_path}", DeprecationWarning, stacklevel=2)
        new_module = import_module(new_path)

        def resolve(name: str) -> Any:
            return getattr(new_module, moved.names.get(name, name))

        module.__getattr__ = resolve  # type: ignore[method-assign]


def install_moved_sdk_modules() -> None:
    """Make the deprecated paths of ``gangline.sdk`` importable."""
    sys.meta_path.append(_MovedModuleFinder("gangline.sdk", _SDK))
