"""Write the table of Kubernetes' protobuf fields from the Go types of a source tree.

    python tools/kubernetes_protobuf_fields.py KUBERNETES_TREE > TABLE.json

The table has, for each message, the JSON name and the type of each numbered field, which the wire
format lacks. ``gangline.local.apiserver.machinery.protobuf`` decodes bodies with it.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

API_PACKAGES = (
    "core/v1", "apps/v1", "batch/v1", "batch/v1beta1", "rbac/v1", "authentication/v1",
    "authorization/v1", "policy/v1beta1", "scheduling/v1", "coordination/v1", "networking/v1",
)  # fmt: skip
PACKAGES = (*(f"api/{package}" for package in API_PACKAGES), "apimachinery/pkg/apis/meta/v1")
ROOTS = (
    "Binding", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "CronJob", "DeleteOptions",
    "Deployment", "Endpoints", "Event", "Eviction", "Ingress", "Job", "Lease",
    "LocalSubjectAccessReview", "Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim",
    "Pod", "PodDisruptionBudget", "PriorityClass", "ReplicaSet", "ResourceQuota", "Role",
    "RoleBinding", "Secret", "SelfSubjectAccessReview", "SelfSubjectRulesReview", "Service",
    "ServiceAccount", "SubjectAccessReview", "TokenRequest", "TokenReview",
)  # fmt: skip
NEWER = {"SelfSubjectReview": {"1": "metadata ObjectMeta"}}
"""Messages that older source trees do not have."""
SPECIAL = {"Time", "MicroTime", "Quantity", "IntOrString", "RawExtension", "FieldsV1", "Duration"}

Structs: TypeAlias = dict[str, list[tuple[str, str, str]]]

STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
ALIAS = re.compile(r"^type (\w+) (map\[.*|\[\]\w+)$", re.MULTILINE)
FIELD = re.compile(r'^\s+(?:\w+\s+)?(\S+)\s+`json:"([^"]*)"[^`]*protobuf:"\w+,(\d+),', re.MULTILINE)


def read_types(tree: Path) -> tuple[Structs, dict[str, str]]:
    """Return the fields of all structs, and what named maps and lists are."""
    structs: Structs = {}
    aliases: dict[str, str] = {}
    for package in PACKAGES:
        for path in (tree / "staging/src/k8s.io" / package).glob("*types*.go"):
            text = path.read_text()
            aliases.update(ALIAS.findall(text))
            for name, body in STRUCT.findall(text):
                structs.setdefault(name, FIELD.findall(body))
    return structs, aliases


def described(go: str, structs: Structs, aliases: dict[str, str]) -> tuple[str, str]:
    """Return how a field repeats, and its type: a letter for scalars, a name for messages."""
    go = go.removeprefix("*")
    many = ""
    if go in aliases and go != "ExtraValue":
        go = aliases[go]
    if go.startswith("map["):
        many, go = "{}", go.partition("]")[2]
    elif go.startswith("[]") and go != "[]byte":
        many, go = "[]", go[2:]
    bare = go.removeprefix("*").rpartition(".")[2]
    if bare == "ExtraValue" or bare in SPECIAL or bare in structs:
        return many, bare
    if go == "[]byte":
        return many, "y"
    if bare == "bool":
        return many, "b"
    return many, "i" if re.fullmatch(r"u?int\d*", bare) else "s"


def reachable(structs: Structs, aliases: dict[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the messages that the roots need, each with its fields by number."""
    waiting, seen = list(ROOTS), set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name in SPECIAL or name not in structs:
            continue
        seen.add(name)
        fields = {}
        for go, tag, number in structs[name]:
            many, kind = described(go, structs, aliases)
            json_name, _, options = tag.partition(",")
            kept = "?" if go.startswith("*") or "omitempty" not in options else ""
            fields[number] = f"{json_name}{kept} {many}{kind}"
            waiting.append(kind)
        yield name, fields


def main() -> None:
    """Print the table, one message a line."""
    structs, aliases = read_types(Path(sys.argv[1]))
    messages = sorted([*reachable(structs, aliases), *NEWER.items()])
    lines = (f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in messages)
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()
