"""What kube-controller-manager does, for the embedded cluster.

One module for each decision, all pure: `garbage`, `endpoints`, `health` (nodes), `rollout` and
`replicas` (Deployments), `volumes`, `budgets`, `autoscaler`. The `loops` observe and act; `manager`
runs them all on one set of informers. Nothing here is needed on a real Kubernetes.
"""
