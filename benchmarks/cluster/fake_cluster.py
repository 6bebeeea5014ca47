"""An embedded cluster whose containers are not processes; the options are those of ``gangline up``.

``python -m benchmarks.cluster.fake_cluster --name bench --port 0 --nodes 5 --cpus 1000``
"""

from dataclasses import fields
from typing import Any

import click

from benchmarks.cluster.fake_runtime import FakeRuntime
from gangline.cli.commands.cluster import up_command
from gangline.cli.embedded_components import embedded_components
from gangline.local.cluster import run_foreground
from gangline.local.settings import ClusterSettings

# Pods without processes need no namespaces.
_NETWORK = "host"
_OPTIONS = {field.name for field in fields(ClusterSettings)} - {"network"}


@click.command(params=[option for option in up_command.params if option.name in _OPTIONS])
def main(**options: Any) -> None:
    """Run the cluster until SIGTERM or Ctrl-C."""
    settings = ClusterSettings(network=_NETWORK, **options)
    run_foreground(settings, embedded_components(frozenset()), runtime=FakeRuntime())


if __name__ == "__main__":
    main()
