"""The copy of the training state in shared memory of one node.

From low to high: ``capacity`` (does it fit), ``directory`` (the folder of one job and its locks),
``segment`` (one file: header, layout, data), ``inventory`` (the snapshots of a node), ``device``
(copies from accelerators), ``copy`` (tensors to memory, with checksums), ``ring`` (the buffers of
one rank, and the save itself). ``capacity``, ``directory``, ``segment`` and ``inventory`` do not
import torch. Imports ``format``.
"""
