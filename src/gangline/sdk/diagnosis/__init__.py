"""Why a job failed or does not run.

``inputs`` reads status, pods, events and the ends of logs; ``diagnosis`` finds the root cause;
``pending`` recognises why a job has not started. ``gangline.api.symptoms`` recognises lines of
logs. All but ``inputs`` are pure.
"""
