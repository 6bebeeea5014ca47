"""The background process of one job on one node, which writes snapshots to storage.

``messages`` between training processes and the saver, ``client`` (the end in the training process),
``replication`` (copies to and from a peer node), ``process`` (writes, commits, and the main loop).
No torch: the saver outlives the training processes. Imports ``format``, ``snapshot`` and
``storage``.
"""
