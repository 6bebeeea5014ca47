"""The operator: turns job resources into pods, services, pod groups and status."""
