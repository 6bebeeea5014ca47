"""What a TrainJob runs: its runtime, with the job's changes and the variables of the framework.

Everything here is a function of the job and the runtime, without I/O. The operator makes pods from
the result, and ``gangline get --effective`` prints it.
"""
