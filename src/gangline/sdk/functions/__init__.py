"""A Python function as a job.

``source`` collects the function with what it uses of its module; ``job`` builds the manifest, and
brings the results back through the logs. Both are pure.
"""
