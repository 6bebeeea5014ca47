"""The kind of the Brain: JobAdvice."""
