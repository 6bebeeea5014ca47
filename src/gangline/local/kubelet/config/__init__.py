"""Configuration of containers: ConfigMaps, Secrets, claims and environment variables.

``environment`` (pure) builds the variables of a container from objects that are passed in.
``config_source`` reads these objects from the API server and caches them for two seconds.
"""
