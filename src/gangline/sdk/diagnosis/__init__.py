"""Why a job failed or does not run.

``inputs`` reads status, pods, events and the ends of logs; ``diagnosis`` finds the root cause;
``symptoms`` recognises lines of logs, ``pending`` recognises why a job has not started. All but
``inputs`` are pure.
"""
