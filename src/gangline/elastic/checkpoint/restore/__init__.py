"""Loading: all ranks choose a step and load it from memory, from a peer or from storage.

``source`` reads entries from memory or from a committed step, and verifies checksums;
``dcp_reader`` and ``dcp_writer`` are storage readers and writers for
``torch.distributed.checkpoint``; ``restore`` chooses the step and loads it on all ranks. Imports
everything below the ``Checkpointer``.
"""
