"""Write the table of Kubernetes' protobuf fields from the Go types of its API packages.

    python tools/kubernetes_protobuf_fields.py k8s.io/api k8s.io/apimachinery \\
        k8s.io/apiextensions-apiserver > TABLE.json

The arguments are the source folders of the three Go modules; ``tools/debian-package sid
golang-k8s-api-dev FOLDER``, ``golang-k8s-apimachinery-dev`` and
``golang-k8s-apiextensions-apiserver-dev`` unpack them. The table has, for each
API version and message, the JSON name and the type of each numbered field, which the wire format
lacks, and what Kubernetes' OpenAPI documents say about the field.
``gangline.api.schema.field_table`` reads it and describes its format.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

META = "meta.k8s.io/v1"
PACKAGES = {
    "v1": "core/v1",
    "admissionregistration.k8s.io/v1": "admissionregistration/v1",
    "apps/v1": "apps/v1",
    "authentication.k8s.io/v1": "authentication/v1",
    "authorization.k8s.io/v1": "authorization/v1",
    "autoscaling/v1": "autoscaling/v1",
    "autoscaling/v2": "autoscaling/v2",
    "batch/v1": "batch/v1",
    "certificates.k8s.io/v1": "certificates/v1",
    "coordination.k8s.io/v1": "coordination/v1",
    "discovery.k8s.io/v1": "discovery/v1",
    "events.k8s.io/v1": "events/v1",
    "flowcontrol.apiserver.k8s.io/v1": "flowcontrol/v1",
    "networking.k8s.io/v1": "networking/v1",
    "node.k8s.io/v1": "node/v1",
    "policy/v1": "policy/v1",
    "policy/v1beta1": "policy/v1beta1",
    "rbac.authorization.k8s.io/v1": "rbac/v1",
    "resource.k8s.io/v1": "resource/v1",
    "scheduling.k8s.io/v1": "scheduling/v1",
    "storage.k8s.io/v1": "storage/v1",
}
"""The folder of each API version in ``k8s.io/api``."""
META_FOLDER = "pkg/apis/meta/v1"
EXTENSIONS, EXTENSIONS_FOLDER = "apiextensions.k8s.io/v1", "pkg/apis/apiextensions/v1"
IMPORTED = re.compile(r"k8s\.io/(?:api/(.+)|apimachinery/(pkg/apis/meta/v1))")
SPECIAL = {
    "Duration", "ExtraValue", "FieldsV1", "IntOrString", "JSON", "MicroTime", "Quantity",
    "RawExtension", "Time",
}  # fmt: skip
"""Messages whose JSON form is not an object of their fields."""
FORMER = {
    (META, "ObjectMeta"): {"15": "clusterName s"},
    ("v1", "EphemeralVolumeSource"): {"2": "readOnly b"},
    ("v1", "ServiceSpec"): {"16": "topologyKeys []s"},
}
"""Fields that older clients still write. Kubernetes removed them after version 1.20."""
LATER = {
    "resource.k8s.io/v1": {
        "DeviceTaintRule": {
            "1": "metadata meta.k8s.io/v1#ObjectMeta",
            "2": "spec?! DeviceTaintRuleSpec",
            "3": "status DeviceTaintRuleStatus",
        },
        "DeviceTaintRuleSpec": {
            "1": "deviceSelector? DeviceTaintSelector",
            "2": "taint?! DeviceTaint",
        },
        "DeviceTaintRuleStatus": {"1": "conditions []meta.k8s.io/v1#Condition map=type"},
        "DeviceTaintSelector": {"2": "driver? s", "3": "pool? s", "4": "device? s"},
    },
}
"""Messages of Kubernetes 1.37 that Debian's packages have in older versions only."""
UNIONS = {
    (EXTENSIONS, "JSONSchemaPropsOrArray"): {
        "1": "schema? JSONSchemaProps", "2": "items []JSONSchemaProps"},
    (EXTENSIONS, "JSONSchemaPropsOrBool"): {"1": "allows? b", "2": "schema? JSONSchemaProps"},
    (EXTENSIONS, "JSONSchemaPropsOrStringArray"): {
        "1": "schema? JSONSchemaProps", "2": "items []s"},
}  # fmt: skip
"""Messages of which JSON has one of the fields; their Go types have no names for JSON."""

STRUCT = re.compile(r"^type (\w+) struct ?\{(?:\})?$")
ALIAS = re.compile(r"^type (\w+) (map\[.*|\[\]\w+|u?int\d+)$", re.MULTILINE)
IMPORT = re.compile(r'^\s+(?:(\w+) )?"(k8s\.io/[^"]+)"', re.MULTILINE)
FIELD = re.compile(r'^\s+(?:\w+\s+)?(\S+)\s+`json:"([^"]*)"[^`]*protobuf:"\w+,(\d+),')
MARKER = re.compile(r"^\s*// ?\+(\w+)(?:=(\S+))?\s*$")


class Field(NamedTuple):
    """A field of a Go struct."""

    go: str
    tag: str
    number: str
    markers: list[tuple[str, str]]


class Package:
    """The types of one API version."""

    def __init__(self, api_version: str, folder: Path) -> None:
        self.api_version = api_version
        self.structs: dict[str, list[Field]] = {}
        self.atomic: set[str] = set()
        self.aliases: dict[str, str] = {}
        self.imports: dict[str, str] = {}
        for path in sorted(folder.glob("*.go")):
            if not path.name.startswith(("zz_", "generated", "types_swagger")):
                self._read(path.read_text())

    def _read(self, text: str) -> None:
        self.aliases.update(ALIAS.findall(text))
        for name, address in IMPORT.findall(text):
            if found := IMPORTED.fullmatch(address):
                api_version = META if found[2] else _api_version(found[1])
                self.imports[name or address.rpartition("/")[2]] = api_version
        self._read_structs(text.splitlines())

    def _read_structs(self, lines: list[str]) -> None:
        fields: list[Field] = []
        markers: list[tuple[str, str]] = []
        for line in lines:
            if marker := MARKER.match(line):
                markers.append((marker[1], marker[2] or ""))
                continue
            if line.lstrip().startswith("//") or not line.strip():
                continue
            if struct := STRUCT.match(line):
                fields = self.structs[struct[1]] = []
                if ("structType", "atomic") in markers:
                    self.atomic.add(struct[1])
            elif field := FIELD.match(line):
                fields.append(Field(field[1], field[2], field[3], markers))
            elif line.startswith("}"):
                fields = []
            markers = []


def _api_version(folder: str) -> str:
    return next((api_version for api_version, each in PACKAGES.items() if each == folder), "")


Packages: TypeAlias = dict[str, Package]


def type_of(go: str, package: Package, packages: Packages) -> tuple[str, str]:
    """Return how a field repeats, and its type: a letter, ``VERSION#NAME`` or a special name."""
    go = go.removeprefix("*")
    many = ""
    owner, _, bare = go.rpartition(".")
    aliases = packages[package.imports[owner]].aliases if owner in package.imports else None
    aliases = package.aliases if not owner else aliases or {}
    if bare in aliases and bare not in SPECIAL:
        go = aliases[bare]
    if go.startswith("map["):
        many, go = "{}", go.partition("]")[2]
    elif go.startswith("[]") and go != "[]byte":
        many, go = "[]", go[2:]
    owner, _, bare = go.removeprefix("*").rpartition(".")
    if bare in SPECIAL:
        return many, bare
    home = packages.get(package.imports.get(owner, "")) if owner else package
    if home is not None and bare in home.structs:
        return many, f"{home.api_version}#{bare}"
    if go == "[]byte":
        return many, "y"
    scalars = {"bool": "b", "float64": "d", "int32": "n", "int64": "i", "int": "i"}
    return many, scalars.get(bare, "s")


def describe(field: Field, package: Package, packages: Packages) -> str:
    """Return the entry of a field in the table."""
    many, type_ = type_of(field.go, package, packages)
    json_name, _, options = field.tag.partition(",")
    omitted = "omitempty" in options or "omitzero" in options
    markers = dict(field.markers)
    optional = ("optional" in markers or omitted) and "required" not in markers
    name = json_name + ("?" if field.go.startswith("*") or not omitted else "")
    name += "" if optional or not json_name else "!"
    flags = []
    if many == "[]" and (list_type := markers.get("listType")):
        keys = ",".join(value for key, value in field.markers if key == "listMapKey")
        flags.append(f"{list_type}={keys}" if keys else list_type)
    elif "atomic" in (markers.get("mapType"), markers.get("structType")):
        flags.append("atomic")
    if strategy := markers.get("patchStrategy"):
        flags.append(f"patch={strategy}")
    if key := markers.get("patchMergeKey"):
        flags.append(f"key={key}")
    type_ = type_.removeprefix(f"{package.api_version}#")
    return " ".join((name, many + type_, *flags))


def reachable(packages: Packages) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield API version, name and fields of the kinds and of the messages that they need."""
    waiting = [(META, "DeleteOptions")]
    waiting += [
        (package.api_version, name)
        for package in packages.values()
        for name, fields in package.structs.items()
        if any(field.go == "metav1.ObjectMeta" and field.number == "1" for field in fields)
    ]
    seen = set[tuple[str, str]]()
    while waiting:
        api_version, name = waiting.pop()
        if (api_version, name) in seen:
            continue
        seen.add((api_version, name))
        package = packages[api_version]
        fields = {"0": "atomic"} if name in package.atomic else {}
        fields |= FORMER.get((api_version, name), {}) | UNIONS.get((api_version, name), {})
        for field in package.structs[name]:
            fields[field.number] = describe(field, package, packages)
            target, _, bare = type_of(field.go, package, packages)[1].rpartition("#")
            if target:
                waiting.append((target, bare))
        yield api_version, name, dict(sorted(fields.items(), key=lambda item: int(item[0])))


def make_table(
    api: Path, machinery: Path, extensions: Path
) -> dict[str, dict[str, dict[str, str]]]:
    """Return the fields by API version, message and number."""
    packages = {version: Package(version, api / folder) for version, folder in PACKAGES.items()}
    packages[META] = Package(META, machinery / META_FOLDER)
    packages[EXTENSIONS] = Package(EXTENSIONS, extensions / EXTENSIONS_FOLDER)
    table: dict[str, dict[str, dict[str, str]]] = {}
    for api_version, name, fields in sorted(reachable(packages)):
        table.setdefault(api_version, {})[name] = fields
    for api_version, messages in LATER.items():
        table[api_version] = dict(sorted({**messages, **table[api_version]}.items()))
    return table


def main() -> None:
    """Print the table, one message a line."""
    table = make_table(*map(Path, sys.argv[1:4]))
    parts = (
        f"{json.dumps(api_version)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in each.items())
        + "\n}"
        for api_version, each in table.items()
    )
    print("{\n" + ",\n".join(parts) + "\n}")


if __name__ == "__main__":
    main()
