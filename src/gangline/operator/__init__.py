"""Job resources to pods, services, pod groups and status."""
