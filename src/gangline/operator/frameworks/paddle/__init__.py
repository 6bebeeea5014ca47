"""PaddleJob: parameter servers and trainers, compatible with the Paddle operator.

``framework`` reads the job, ``network`` assigns ports and addresses, ``pods`` shapes pods,
``status`` writes the upstream status fields.
"""
