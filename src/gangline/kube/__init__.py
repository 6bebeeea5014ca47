"""Talking to an API server: configuration, client, informers, work queue, controllers."""
