"""Node check: before training, find the nodes that fail or drag, and blame no healthy one."""
