"""The common form of a job: values only, no I/O and no state.

``labels`` names what ties objects to their job; ``replicas`` holds lean views of pods and the
replica slots; ``job`` is the form that every kind is read into, with the capability protocols of
the kinds; ``framework`` is the protocol of a kind's reader; ``plan`` holds the observed state and
the planned writes. Imports nothing of the operator outside this package.
"""
