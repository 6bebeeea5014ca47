"""A Python function as a job.

``source`` collects the function with what it uses of its module; ``results`` brings its results
back through the logs; ``job`` builds the manifest. All are pure.
"""
