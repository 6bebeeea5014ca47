"""HorizontalPodAutoscaler controller: sets the scale of a workload by the resource usage of its
pods.

``plan`` (pure) computes what each metric proposes, and applies the stabilization window, the
scaling policies and the bounds; ``controller`` reads the metrics API and writes the scale.
"""
