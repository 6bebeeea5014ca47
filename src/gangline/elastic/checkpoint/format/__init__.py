"""What a checkpoint looks like: entries, parts, manifest, checksums and the plan of all ranks.

From low to high: ``checksum``, ``manifest`` (the parts and files of a step), ``torch_framing``
(what ``torch.save`` writes around a tensor, safe unpickling), ``plan`` (which rank saves what). The
first two do not import torch: the saver and the agent use them. Imports only ``errors`` and
``ranks`` of the package.
"""
