"""Types of the Kubernetes, Volcano and training-job objects, and the rules for them.

Nothing here does I/O, and nothing imports other packages of Gangline.
"""
