"""The table of field rules: it names fields that exist, and each sort of rule finds its errors."""

import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest

from gangline.local.apiserver.core.registry import all_builtin_kinds
from gangline.local.apiserver.machinery.validation.builtin import validate_create, validate_update

PACKAGE = "gangline.local.apiserver.machinery.validation"
TABLE = tomllib.loads(resources.files(PACKAGE).joinpath("field_rules.toml").read_text())
SCHEMAS = {
    ("" if kind.group == "" else kind.group, kind.kind, kind.version): kind.plain_schema
    for kind in all_builtin_kinds()
}


@pytest.mark.parametrize("title", [title for title in TABLE if not title.startswith("part ")])
def test_every_path_of_the_table_is_a_field_of_its_kinds(title: str) -> None:
    for kind in title.split(", "):
        group, _, name = kind.partition(" ")
        group = "" if group == "v1" else group
        schemas = [s for (g, k, _), s in SCHEMAS.items() if (g, k) == (group, name)]
        assert schemas, kind
        for path in paths(title):
            assert any(has(schema, path) for schema in schemas), f"{kind}: {path}"


def paths(title: str) -> Iterator[str]:
    """All paths of a section, with those of the parts to which it refers."""
    for key, rules in TABLE[title].items():
        path = key.partition("|")[0]
        yield path
        for part in re.findall(r"\bas ([A-Z]\w+)", rules):
            yield from (f"{path}.{below}" for below in paths(f"part {part}"))


def has(schema: dict[str, Any], path: str) -> bool:
    for step in path.replace("[]", ".[]").replace("{}", ".{}").replace("?", "").split("."):
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            return True
        inner = {"[]": schema.get("items"), "{}": schema.get("additionalProperties")}
        found = inner.get(step) or schema.get("properties", {}).get(step)
        if not isinstance(found, dict):
            return False
        schema = found
    return True


def obj(**content: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x", "namespace": "n"}, **content}


@pytest.mark.parametrize(
    ("group", "kind", "given", "fields"),
    [
        ("storage.k8s.io", "CSINode",
         obj(spec={"drivers": [{"name": "a", "nodeID": "b", "allocatable": {"count": -1}}, {}]}),
         {"spec.drivers[0].allocatable.count", "spec.drivers[1].name", "spec.drivers[1].nodeID"}),
        ("networking.k8s.io", "Ingress",
         obj(spec={"rules": [{"host": "10.0.0.1"}, {"http": {"paths": [
             {"path": "a", "pathType": "Odd"},
             {"path": "a", "pathType": "Exact", "backend": {"service": {"name": "S"}}}]}}]}),
         {"spec.rules[0].host", "spec.rules[1].http.paths[0].backend",
          "spec.rules[1].http.paths[0].pathType", "spec.rules[1].http.paths[1].path",
          "spec.rules[1].http.paths[1].backend",
          "spec.rules[1].http.paths[1].backend.service.name"}),
        ("networking.k8s.io", "NetworkPolicy",
         obj(spec={"policyTypes": ["Out", None], "ingress": [{"from": [{}, {"ipBlock": {}}]}],
                   "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/40"}}]}]}),
         {"spec.policyTypes[0]", "spec.policyTypes[1]", "spec.ingress[0].from[0]",
          "spec.ingress[0].from[1].ipBlock.cidr", "spec.egress[0].to[0].ipBlock.cidr"}),
        ("networking.k8s.io", "NetworkPolicy",
         obj(spec={"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": [""]},
                                          "podSelector": {}}], "ports": [{"port": ""}]}]}),
         {"spec.ingress[0].from[0]", "spec.ingress[0].from[0].ipBlock.except[0]",
          "spec.ingress[0].ports[0].port"}),
        ("networking.k8s.io", "Ingress", obj(spec={"tls": [{"hosts": [""]}]}),
         {"spec", "spec.tls[0].hosts[0]"}),
        ("", "Endpoints", obj(subsets=[{"addresses": [{"ip": "10.0.0.1"}],
                                        "ports": [{"port": 1, "name": "a"}, {"port": 2}]}]),
         {"subsets[0].ports[1].name"}),
        ("node.k8s.io", "RuntimeClass",
         obj(handler="a", overhead={"podFixed": {"odd": "1"}},
             scheduling={"tolerations": [{"operator": "Equal"}]}),
         {"overhead.limits[odd]", "scheduling.tolerations[0].operator"}),
        ("", "PersistentVolume",
         obj(spec={"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                   "hostPath": {"path": "/a/../b", "type": "Odd"}, "volumeMode": "",
                   "nodeAffinity": {"required": {
                       "nodeSelectorTerms": [{"matchExpressions": [{"key": "a"}]}]}}}),
         {"spec.hostPath.path", "spec.hostPath.type", "spec.volumeMode",
          "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].operator"}),
        ("storage.k8s.io", "StorageClass",
         obj(provisioner="a", reclaimPolicy="", volumeBindingMode="Immediate",
             allowedTopologies=[{"matchLabelExpressions": [{"key": "a", "values": ["b", "b"]}]}]),
         {"reclaimPolicy", "allowedTopologies[0].matchLabelExpressions[0].values[1]"}),
        ("", "LimitRange", obj(spec={"limits": [{"max": {"cpu": "x"}},
                                                {"type": "Odd", "min": {"odd": "1"}}]}),
         {"spec.limits[0].type", "spec.limits[0].max[cpu]", "spec.limits[1].type",
          "spec.limits[1].min[odd]"}),
        ("apps", "DaemonSet",
         obj(spec={"updateStrategy": {"type": "Odd", "rollingUpdate": {"maxUnavailable": "a"}},
                   "selector": {"matchLabels": {"a": "b"}},
                   "template": {"metadata": {"labels": {"a": "b"}},
                                "spec": {"containers": [{"name": "c", "image": "i"}]}}}),
         {"spec.updateStrategy.type", "spec.updateStrategy.rollingUpdate.maxUnavailable"}),
        ("apiregistration.k8s.io", "APIService",
         obj(spec={"group": "g", "version": "v", "versionPriority": 2000, "groupPriorityMinimum": 1,
                   "service": {"name": "s"}}),
         {"spec.versionPriority", "spec.service.namespace"}),
        ("", "Service", obj(spec={"clusterIP": "None", "sessionAffinityConfig": None}), set()),
    ],
)  # fmt: skip
def test_rules_of_the_table_name_the_wrong_fields(
    group: str, kind: str, given: dict[str, Any], fields: set[str]
) -> None:
    namespaced = kind not in (
        "APIService",
        "CSINode",
        "PersistentVolume",
        "RuntimeClass",
        "StorageClass",
    )
    if not namespaced:
        del given["metadata"]["namespace"]
    assert {cause.field for cause in validate_create(group, kind, given, namespaced)} == fields


def test_fields_that_are_kept_or_immutable_do_not_change() -> None:
    def changed(group: str, kind: str, before: Any, after: Any) -> list[tuple[str, str]]:
        old, new = ({"metadata": {"name": "x"}, **content} for content in (before, after))
        causes = validate_update(group, kind, old, new, namespaced=False)
        return [(cause.reason, cause.field) for cause in causes]

    storage = {"provisioner": "a", "parameters": {"a": "b"}, "reclaimPolicy": "Delete"}
    assert changed("storage.k8s.io", "StorageClass", storage, storage | {"parameters": None}) == [
        ("FieldValueForbidden", "parameters")
    ]
    handler = ({"handler": "a"}, {"handler": "b"})
    assert changed("node.k8s.io", "RuntimeClass", *handler) == [("FieldValueInvalid", "handler")]
    assert not changed("node.k8s.io", "RuntimeClass", {"handler": "a"}, {"handler": "a", "x": 1})
