"""The parts of ``gangline demo``: its cluster, the timeline of a run, and its display.

``timeline`` is pure, ``view`` draws it, ``cluster`` runs an embedded cluster in this process.
They are apart from the command because their imports (rich, the embedded cluster) are slow.
"""
