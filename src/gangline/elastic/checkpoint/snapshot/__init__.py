"""The copy of the training state in shared memory of one node.

From low to high: ``directory`` (the folder of one job and its locks), ``segment`` (one file:
header, layout, data; does it fit), ``inventory`` (the snapshots of a node), ``copy`` (tensors to
memory, with checksums), ``ring`` (the buffers of one rank, and the save itself). The first three do
not import torch. Imports ``format``.
"""
