"""``backup`` and ``restore``: the state of the embedded cluster on this machine."""

from pathlib import Path

import click

from gangline.cli.commands.cluster import name_option
from gangline.cli.params.command import command
from gangline.cli.params.options import debug_option


@command("backup", examples="gangline backup cluster.tar")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@name_option
@click.option(
    "--without-encryption-key",
    is_flag=True,
    help="Leave out the cluster's generated key: a restore then needs --encryption-key.",
)
@debug_option
def backup_command(file: Path, name: str, without_encryption_key: bool) -> None:
    """Write the state of a cluster to FILE, which must not exist.

    The cluster may run: clients go on writing, and FILE has the state of one moment. It contains
    all objects, the cluster's credentials and private keys, and the image map; not the volumes and
    logs of pods. Only you can read FILE: who reads it has all rights in the cluster.
    """
    from gangline.local.backups import create_backup
    from gangline.local.directory import ClusterDirectory, default_home

    home = ClusterDirectory(default_home(), name)
    backup = create_backup(home, file, with_key=not without_encryption_key)
    manifest = backup.manifest
    size = file.stat().st_size
    click.echo(
        f"{file} has cluster {name} at revision {manifest.revision}: {manifest.objects} objects, "
        f"{size / 1e6:.1f} MB."
    )
    click.echo("It contains the private keys of the cluster: store it as a secret.")
    if not backup.has_key:
        names = ", ".join(manifest.encrypted_with)
        click.echo(f"Its Secrets need the encryption key {names}, which it does not contain.")


@command(
    "restore",
    examples="""
        gangline down
        gangline restore cluster.tar --force
    """,
)
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@name_option
@click.option(
    "--force", is_flag=True, help="Replace the present state; it is moved to a folder beside."
)
@click.option(
    "--encryption-key",
    "key_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the keys of the backup's Secrets, if FILE does not contain them.",
)
@debug_option
def restore_command(file: Path, name: str, force: bool, key_file: Path | None) -> None:
    """Make the state in FILE that of a cluster, which must not run.

    FILE is checked completely before anything is replaced. Its kubeconfigs and tokens become valid
    again. Objects get no revision that clients have seen: watches start again.
    """
    from gangline.local.backups import restore_backup
    from gangline.local.directory import ClusterDirectory, cli_command, default_home
    from gangline.local.settings import changed_settings

    home = ClusterDirectory(default_home(), name)
    restored = restore_backup(file, home, force=force, key_file=key_file)
    manifest = restored.manifest
    click.echo(
        f"Cluster {name} has the {manifest.objects} objects of {manifest.created:%Y-%m-%d %H:%M} "
        f"UTC (revision {manifest.revision}); it continues at revision {restored.revision}."
    )
    if restored.replaced is not None:
        click.echo(f"Its former state is in {restored.replaced}; remove it if it is not needed.")
    if options := changed_settings(restored.settings):
        click.echo(f"It ran with {', '.join(options)}.")
    verb = "up --encryption-key FILE" if restored.needs_key else "up"
    click.echo(f"Start it with {cli_command(verb, name)}.")
