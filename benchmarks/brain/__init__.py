"""The Brain: what its models predict, and what its advice costs and saves, on synthetic jobs."""
