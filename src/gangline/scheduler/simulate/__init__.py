"""The scheduler on virtual time: the same decisions as on a cluster, over a trace of jobs.

``trace`` reads or ``generate`` makes the jobs, ``cluster`` describes nodes and queues, ``engine``
lets time pass, ``check`` watches every decision independently, ``outcome`` adds up what came of it.
"""
