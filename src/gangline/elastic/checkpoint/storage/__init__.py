"""Where checkpoints are stored: folders and object stores, and how a step becomes committed there.

``target`` reads and writes one folder or URL, ``detect`` recognises checkpoints of other programs,
``commit`` writes parts, commits steps and applies retention. Each operation may be killed and
repeated. No torch. Imports ``format`` and ``snapshot``.
"""
