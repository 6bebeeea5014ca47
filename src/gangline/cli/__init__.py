"""The `gangline` command."""
