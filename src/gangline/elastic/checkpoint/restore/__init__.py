"""Loading: all ranks choose a step and load it from memory, from a peer or from storage.

``source`` reads entries from memory, ``storage_source`` from a committed step; both verify
checksums. ``dcp_reader`` and ``dcp_writer`` are storage readers and writers for
``torch.distributed.checkpoint``, ``restore`` chooses the step and loads it on all ranks. Imports
everything below the ``Checkpointer``.
"""
