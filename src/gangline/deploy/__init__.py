"""Installs Gangline on a cluster without Helm, from the same chart.

``template`` renders Go templates, ``values`` merges and checks values, ``chart`` renders the chart,
``manifests`` orders the rendered objects. ``facts`` reads a cluster, ``preflight`` judges what was
read, ``release`` applies and deletes objects.
"""
