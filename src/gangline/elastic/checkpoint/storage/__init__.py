"""Where checkpoints are stored: folders and object stores, and how a step becomes committed there.

``target`` reads and writes one folder or URL; ``commit`` writes parts, commits steps, applies
retention and recognises checkpoints of other programs. Each operation may be killed and repeated.
No torch. Imports ``format`` and ``snapshot``.
"""
