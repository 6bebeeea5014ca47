"""Where a job can be reached: targets of port forwardings, and its TensorBoard."""
