"""Parts of ``gangline plan``: options, programs that need PyTorch, jobs that exist, the table."""
