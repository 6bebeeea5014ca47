"""``whoami``: the user as whom the API server knows this client."""

import hashlib
import json

import click

from gangline.cli.errors import CommandError
from gangline.cli.params.command import command
from gangline.cli.params.session import ClusterSession, cluster_command
from gangline.kube.errors import NotFound


@command(
    "whoami",
    examples="""
        gangline whoami
        gangline whoami --context production
    """,
)
@cluster_command
async def whoami_command(cluster: ClusterSession) -> None:
    """Print your name, as one line of JSON with Arena's keys.

    Id is the MD5 sum of the name. IsAdminUser is true if you may do everything in all namespaces.
    """
    try:
        name = await cluster.client.user_name()
    except NotFound as error:
        raise CommandError(
            "this cluster does not answer who its clients are; Kubernetes does since 1.28",
            hint="'kubectl config view --minify' shows the user of your kubeconfig.",
        ) from error
    allowed = await cluster.client.is_allowed(verb="*", group="*", resource="*")
    identity = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
    shown = {"Name": name, "Id": identity, "IsAdminUser": allowed}
    click.echo(json.dumps(shown))
