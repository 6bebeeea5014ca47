"""``data list``: persistent volume claims that jobs can mount."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gangline.cli.params.command import command, group
from gangline.cli.params.job_selection import (
    all_namespaces_option,
    poll_changes,
    selector_option,
    watch_option,
)
from gangline.cli.params.options import output_option
from gangline.cli.params.session import ClusterSession, namespace_command
from gangline.cli.render.jobs import current_time
from gangline.cli.render.output import format_age, format_table, print_result, print_status

if TYPE_CHECKING:
    from gangline.api.core.storage import PersistentVolumeClaim


@group("data", examples="gangline data list -A")
def data_command() -> None:
    """Show persistent volume claims that jobs can mount."""


@command(
    "list",
    examples="""
        gangline data list
        gangline data list -A -o wide
    """,
)
@namespace_command
@all_namespaces_option
@selector_option("claims")
@watch_option("what changes")
@output_option()
async def list_data(
    cluster: ClusterSession, all_namespaces: bool, selector: str, watch: bool, output: str
) -> None:
    """Show bound claims, with their annotations 'description' and 'owner'."""
    from gangline.api.resources import PERSISTENT_VOLUME_CLAIMS

    namespace = cluster.namespace_to_list(all_namespaces)

    async def bound_claims() -> "Sequence[PersistentVolumeClaim]":
        listing = await cluster.client.list(PERSISTENT_VOLUME_CLAIMS, namespace, labels=selector)
        return sorted(
            (item for item in listing.items if item.status.phase == "Bound"),
            key=lambda claim: (claim.metadata.namespace, claim.metadata.name),
        )

    async for claims, head in poll_changes(bound_claims, watch=watch):
        _print_claims(claims, output, namespaces=all_namespaces, head=head)


def _print_claims(
    claims: "Sequence[PersistentVolumeClaim]", output: str, *, namespaces: bool, head: bool
) -> None:
    names = [f"persistentvolumeclaim/{claim.metadata.name}" for claim in claims]
    if not print_result([claim_data(claim) for claim in claims], output, names):
        shown = claim_table(claims, namespaces=namespaces, wide=output == "wide")
        click.echo(shown if head else shown.partition("\n")[2])
        if not claims:
            print_status("No claim is bound; 'kubectl get pvc' shows pending claims.")


data_command.add_command(list_data)
data_command.add_command(list_data, "ls")


def claim_data(claim: "PersistentVolumeClaim") -> dict[str, Any]:
    notes = claim.metadata.annotations
    return {
        "name": claim.metadata.name,
        "namespace": claim.metadata.namespace,
        "accessModes": list(claim.spec.access_modes),
        "description": notes.get("description", ""),
        "owner": notes.get("owner", ""),
        "age": format_age(claim.metadata.creation_timestamp, current_time()),
        "storageClass": claim.spec.storage_class_name or "",
        "capacity": str(claim.status.capacity.get("storage", "")),
        "volume": claim.spec.volume_name,
    }


def claim_table(claims: "Sequence[PersistentVolumeClaim]", *, namespaces: bool, wide: bool) -> str:
    """Return claims under Arena's header; ``wide`` adds capacity, storage class and volume."""
    head = ["NAME", *(["NAMESPACE"] if namespaces else [])]
    head += ["ACCESSMODE", "DESCRIPTION", "OWNER", "AGE"]
    head += ["CAPACITY", "STORAGECLASS", "VOLUME"] if wide else []
    rows: list[list[object]] = []
    for claim in claims:
        data = claim_data(claim)
        row = [data["name"], *([data["namespace"]] if namespaces else [])]
        row += [",".join(data["accessModes"]), data["description"], data["owner"], data["age"]]
        row += [data["capacity"], data["storageClass"], data["volume"]] if wide else []
        rows.append(row)
    return format_table(head, rows)
