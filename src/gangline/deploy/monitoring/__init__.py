"""What to watch: alert rules and Grafana boards as data, and the files that are made from them.

``alerts`` and ``boards`` are tables. ``files`` turns them into rules of Prometheus and JSON of
Grafana; ``tools/generate_deploy.py`` writes them to ``deploy/monitoring``, and the chart installs
them as a PrometheusRule and ConfigMaps.
"""
