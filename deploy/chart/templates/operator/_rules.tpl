{{/* Rules of the operator for a map of kinds. */}}
{{- define "gangline.operator.rules" }}
# The jobs. Their finalizers, because objects made for a job hold up its removal.
{{- range $kind, $r := . }}
- apiGroups: [{{ $r.group }}]
  resources: [{{ $r.plural }}]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [{{ $r.group }}]
  resources: [{{ $r.plural }}/status]
  verbs: [patch]
- apiGroups: [{{ $r.group }}]
  resources: [{{ $r.plural }}/finalizers]
  verbs: [update]
{{- end }}
# What is made for them.
- apiGroups: [""]
  resources: [pods, services, configmaps]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- if hasKey . "PyTorchJob" }}
# PyTorchJobs with elasticPolicy.metrics.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [create, delete, get, list, patch, watch]
{{- end }}
{{- if or (hasKey . "MPIJob") (hasKey . "ElasticJob") }}
# The processes of a job authenticate each other with a Secret: it is created, never read, and deleted
# with the job.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
# The launcher of an MPIJob and the master of an ElasticJob get accounts with a few rights of their own.
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [create, delete, get, list, patch, watch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [create, delete, get, list, patch, watch]
{{- end }}
{{- if hasKey . "MPIJob" }}
# Kubernetes lets the operator grant only rights that it has itself. It makes no use of this one.
- apiGroups: [""]
  resources: [pods/exec]
  verbs: [create, get]
{{- end }}
{{- if hasKey . "TrainJob" }}
# The runtimes that TrainJobs name, and the claims of a runtime's volumeClaimPolicies.
- apiGroups: [trainer.kubeflow.org]
  resources: [trainingruntimes]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create, delete, get, list, patch, watch]
{{- if not (or (hasKey . "MPIJob") (hasKey . "ElasticJob")) }}
# The pods of an MPI runtime reach each other by a key pair: its Secret is created, never read, and
# deleted with the job.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
{{- end }}
{{- end }}
{{- if hasKey . "ElasticJob" }}
- apiGroups: [elastic.iml.github.io]
  resources: [scaleplans]
  verbs: [list, watch, patch]
- apiGroups: [elastic.iml.github.io]
  resources: [scaleplans/status]
  verbs: [patch]
# Kubernetes lets the operator grant only rights that it has itself. It makes no use of this one.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [update]
{{- end }}
{{- end }}
