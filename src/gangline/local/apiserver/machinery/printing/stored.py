"""Printers of the kinds whose cells are fields, from the table ``columns.toml``.

A section has the columns of the kinds in its title, after the name of the object. The source of a
column (but of Age) is a path, or a function of ``_CELLS`` and the path of its value; after ``|``
stands what is shown if the value is absent, or what the function needs beside it.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

from gangline.api.meta.json_objects import objects_in, subobject
from gangline.local.apiserver.machinery.kind_tables import GroupKind, read_kind_table
from gangline.local.apiserver.machinery.printing.printer import (
    NONE,
    FieldSource,
    TablePrinter,
    format_age,
    format_labels,
    format_selector,
    join_or_none,
    make_printer,
)
from gangline.local.apiserver.machinery.schema.nodes import Json

__all__ = ["stored_printers"]

MANY_HOSTS = 3


@cache
def stored_printers() -> Mapping[GroupKind, TablePrinter]:
    printers = {}
    for kind, columns in read_kind_table(__package__, "columns.toml"):
        sources = ((name, _source(of)) if of else name for name, of in columns.items())
        printers[kind] = make_printer("Name", *sources)
    return printers


def _source(text: str) -> FieldSource:
    """Return the function of a column's source."""
    text, bar, more = text.partition(" | ")
    more = more if bar else NONE
    function, _, path = text.rpartition(" ")
    if not function and path in _CELLS:
        function, path = path, ""
    *parents, name = path.split(".")

    def cell(obj: Json) -> Any:
        value = subobject(obj, *parents).get(name) if path else obj
        return _CELLS[function](value, more) if function else _plain(value, more)

    return cell


def _plain(value: Any, absent: str) -> Any:
    if value not in (None, ""):
        return value
    return json.loads(absent) if absent in ("0", "true", "false") else absent


def _of_containers(name: str) -> Callable[[Any, str], Any]:
    def cell(pod: Any, _: str) -> str:
        containers = objects_in((pod or {}).get("containers"))
        return join_or_none(container.get(name, "") for container in containers)

    return cell


def _of_quota(limits: bool) -> Callable[[Any, str], Any]:
    def cell(status: Any, _: str) -> str:
        hard, used = subobject(status or {}, "hard"), subobject(status or {}, "used")
        chosen = (name for name in sorted(hard) if name.startswith("limits") == limits)
        return ", ".join(f"{name}: {used.get(name, '')}/{hard[name]}" for name in chosen)

    return cell


def _age(time: Any, absent: str) -> str:
    return format_age(time, datetime.now(UTC)) if time else absent


def _ready(obj: Any, _: str) -> str:
    replicas = subobject(obj, "spec").get("replicas", 1)
    return f"{subobject(obj, 'status').get('readyReplicas', 0)}/{replicas}"


def _hosts(rules: Any, _: str) -> str:
    hosts = [rule["host"] for rule in objects_in(rules) if rule.get("host")]
    more = f" + {len(hosts) - MANY_HOSTS} more..." if len(hosts) > MANY_HOSTS else ""
    return (",".join(hosts[:MANY_HOSTS]) or "*") + more


def _addresses(ingress: Any, _: str) -> str:
    return ",".join(str(one.get("ip") or one.get("hostname")) for one in objects_in(ingress))


def _controller(owners: Any, _: str) -> str:
    owner = next((owner for owner in objects_in(owners) if owner.get("controller")), None)
    if owner is None:
        return NONE
    group = str(owner.get("apiVersion")).rpartition("/")[0]
    kind = str(owner.get("kind")).lower()
    return f"{kind}.{group}/{owner.get('name')}" if group else f"{kind}/{owner.get('name')}"


def _subjects(subjects: Any, kind: str) -> str:
    prefix = "{namespace}/" if kind == "ServiceAccount" else ""
    return ", ".join(
        (prefix + "{name}").format_map({"namespace": "", **subject})
        for subject in objects_in(subjects)
        if subject.get("kind") == kind
    )


def _available(conditions: Any, _: str) -> str:
    for condition in objects_in(conditions):
        if condition.get("type") == "Available":
            reason = "" if condition.get("status") == "True" else f" ({condition.get('reason')})"
            return f"{condition.get('status')}{reason}"
    return "Unknown"


def _signing(conditions: Any, _: str) -> str:
    types = [condition.get("type") for condition in objects_in(conditions)]
    state = next((kind for kind in ("Denied", "Approved") if kind in types), "Pending")
    return state + (",Failed" if "Failed" in types else "")


def _parts(value: Any, names: str) -> str:
    return "/".join(str(value.get(name, "")) for name in names.split()) if value else "<unset>"


_CELLS: Mapping[str, Callable[[Any, str], Any]] = {
    "addresses": _addresses,
    "age": _age,
    "audiences": lambda tokens, _: (
        ",".join(str(token.get("audience")) for token in objects_in(tokens)) or "<unset>"
    ),
    "available": _available,
    "controller": _controller,
    "count": lambda items, _: len(items or ()),
    "hosts": _hosts,
    "images": _of_containers("image"),
    "labels": lambda labels, _: format_labels(labels),
    "limits": _of_quota(limits=True),
    "list": lambda items, _: join_or_none(items or ()),
    "names": _of_containers("name"),
    "parts": _parts,
    "ports": lambda tls, _: "80, 443" if tls else "80",
    "ready": _ready,
    "requests": _of_quota(limits=False),
    "selector": lambda selector, _: format_selector(selector or {}),
    "service": lambda value, _: _parts(value, "namespace name") if value else "Local",
    "signing": _signing,
    "subjects": _subjects,
    "title": lambda value, absent: str(_plain(value, absent)),
}
