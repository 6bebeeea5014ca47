"""``gangline completion``: the completion script of a shell."""

import click

_HOW_TO_INSTALL = """\b
To use it in this shell and in new ones:
  bash:  gangline completion bash > ~/.local/share/bash-completion/completions/gangline
  zsh:   gangline completion zsh > "${fpath[1]}/_gangline"
  fish:  gangline completion fish > ~/.config/fish/completions/gangline.fish
"""


@click.command("completion", epilog=_HOW_TO_INSTALL)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL."""
    from click.shell_completion import get_completion_class  # noqa: PLC0415

    generator = get_completion_class(shell)
    assert generator is not None
    root = context.find_root().command
    click.echo(generator(root, {}, "gangline", "_GANGLINE_COMPLETE").source())
