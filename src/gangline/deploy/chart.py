"""The Helm chart as files of this package, rendered without Helm.

A checkout has it in ``deploy/chart``, an installed package beside this module. The CRDs of the
chart are generated from the structs, as ``deploy/crds`` is.
"""

import fnmatch
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from gangline.api.crd import JOB_SET_FILE, crd_manifests, job_set_manifest
from gangline.api.trainer.builtin_runtimes import builtin_runtimes
from gangline.deploy.monitoring import RULES_FILE, board_files, rules
from gangline.deploy.template.functions import TemplateError
from gangline.deploy.template.syntax import Definitions, Node, parse, render
from gangline.deploy.values import InvalidValues, Values, find_errors, merge_values

Manifest = dict[str, Any]

_CRDS = "files/crds"
_JOB_SET = "files/jobset"
_RUNTIMES = "files/runtimes"
_MONITORING = "files/monitoring"
_HOOK = "helm.sh/hook"


@dataclass(frozen=True, slots=True)
class ClusterCapabilities:
    """What the server can do."""

    api_versions: frozenset[str] = frozenset({"v1", "apps/v1", "policy/v1"})
    """API versions, such as ``policy/v1``."""

    def as_object(self) -> Mapping[str, Any]:
        return {"APIVersions": {"Has": lambda version: version in self.api_versions}}


@dataclass(frozen=True, slots=True)
class ReleaseSettings:
    """Name, namespace and installing program of a release."""

    name: str = "gangline"
    namespace: str = "gangline-system"
    service: str = "gangline-deploy"
    """Value of the label ``app.kubernetes.io/managed-by``."""


class Chart:
    """The chart in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def load(cls) -> "Chart":
        """Return the chart of this package."""
        package = Path(__file__).parent
        folders = (package / "chart", package.parents[2] / "deploy" / "chart")
        return cls(next(folder for folder in folders if (folder / "Chart.yaml").exists()))

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The content of Chart.yaml."""
        return _read_yaml(self._folder / "Chart.yaml")

    @cached_property
    def default_values(self) -> Values:
        return _read_yaml(self._folder / "values.yaml")

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema of the values."""
        schema = json.loads((self._folder / "values.schema.json").read_text(encoding="utf-8"))
        assert isinstance(schema, dict)
        return schema

    def complete(self, *changes: Mapping[str, Any]) -> Values:
        """Return the default values with changes, of which the last wins.

        Raises:
            InvalidValues: the schema refuses some of them; all are named.
        """
        values = self.default_values
        for change in changes:
            values = merge_values(values, change)
        if errors := find_errors(values, self.schema):
            raise InvalidValues(errors)
        return values

    def render(
        self,
        values: Values,
        release: ReleaseSettings | None = None,
        capabilities: ClusterCapabilities | None = None,
    ) -> list[Manifest]:
        """Return the objects of a release without those of ``helm test``; values are complete.

        Raises:
            InvalidValues: a template refused the values.
        """
        release = release or ReleaseSettings()
        context = {
            "Values": {"global": {}, **values},
            "Chart": {key[0].upper() + key[1:]: value for key, value in self.metadata.items()},
            "Release": {
                "Name": release.name,
                "Namespace": release.namespace,
                "Service": release.service,
                "Revision": 1,
            },
            "Capabilities": (capabilities or ClusterCapabilities()).as_object(),
            "Files": _ChartFiles(),
        }
        try:
            texts = [render(nodes, context) for nodes in self._templates]
        except TemplateError as error:
            raise InvalidValues([str(error)]) from error
        manifests = [manifest for text in texts for manifest in _documents(text)]
        return [
            manifest
            for manifest in manifests
            if (manifest["metadata"].get("annotations") or {}).get(_HOOK) != "test"
        ]

    @cached_property
    def _templates(self) -> list[list[Node]]:
        """The templates in the order of their files."""
        definitions: Definitions = {}
        templates = []
        for path in sorted((self._folder / "templates").rglob("*")):
            if path.suffix in {".tpl", ".yaml"}:
                nodes = parse(path.read_text(encoding="utf-8"), definitions)
                templates += [nodes] if path.suffix == ".yaml" else []
        return templates


@dataclass(frozen=True, slots=True)
class _ChartFiles:
    """``.Files``: CRDs, runtimes and rules as JSON, which is YAML and faster to read; boards."""

    texts: dict[str, str] = field(default_factory=dict)
    monitoring: dict[str, str] = field(default_factory=dict)

    def Glob(self, pattern: str) -> dict[str, str]:
        if not self.texts:
            for name, manifest in crd_manifests().items():
                self.texts[f"{_CRDS}/{name}.yaml"] = json.dumps(manifest)
            self.texts[f"{_JOB_SET}/{JOB_SET_FILE}.yaml"] = json.dumps(job_set_manifest())
            for manifest in builtin_runtimes():
                path = f"{_RUNTIMES}/{manifest['metadata']['name']}.yaml"
                self.texts[path] = json.dumps(manifest)
        return {path: text for path, text in self.texts.items() if fnmatch.fnmatch(path, pattern)}

    def Get(self, path: str) -> str:
        if path.startswith(_MONITORING) and not self.monitoring:
            self.monitoring[f"{_MONITORING}/{RULES_FILE}"] = json.dumps(rules())
            for name, text in board_files().items():
                self.monitoring[f"{_MONITORING}/{name}"] = text
        return self.texts.get(path) or self.monitoring.get(path, "")


def _read_yaml(path: Path) -> dict[str, Any]:
    document = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    assert isinstance(document, dict)
    return document


def _documents(text: str) -> Iterable[Manifest]:
    for document in f"\n{text}".split("\n---"):
        stripped = document.strip()
        if stripped.startswith("{"):
            yield json.loads(stripped)
        elif parsed := yaml.load(stripped, yaml.CSafeLoader):
            yield parsed
