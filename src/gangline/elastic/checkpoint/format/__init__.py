"""What a checkpoint looks like: entries, parts, manifest, checksums and the plan of all ranks.

From low to high: ``checksum`` and ``safe_unpickle``, ``layout`` (the entries of one rank),
``manifest`` (the files of a committed step), ``torch_framing`` (what ``torch.save`` writes around a
tensor), ``plan`` (which rank saves what). ``layout``, ``manifest`` and ``checksum`` do not import
torch: the saver and the agent use them. Imports only ``errors`` and ``ranks`` of the package.
"""
