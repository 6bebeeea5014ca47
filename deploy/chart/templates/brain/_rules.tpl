{{/* Rules of the Brain for a map of kinds. */}}
{{- define "gangline.brain.rules" }}
# What advice is made from.
- apiGroups: [""]
  resources: [namespaces, nodes, pods]
  verbs: [get, list, watch]
{{- range $kind, $r := . }}
- apiGroups: [{{ $r.group }}]
  resources: [{{ $r.plural }}]
  verbs: [get, list, watch]
{{- end }}
- apiGroups: [metrics.k8s.io]
  resources: [pods]
  verbs: [get, list]
# The facts of masters, selected by their label, and the tuning of jobs.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, patch, watch]
# What records of jobs are made from, beside the jobs. Without the right to read logs they have no
# last lines of failed replicas.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [list]
- apiGroups: [trainer.kubeflow.org]
  resources: [clustertrainingruntimes, trainingruntimes]
  verbs: [get]
# What advice is written to.
- apiGroups: [brain.gangline.dev]
  resources: [jobadvice]
  verbs: [create, delete, get, list, watch]
- apiGroups: [brain.gangline.dev]
  resources: [jobadvice/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
# Estimates of run times.
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [list, patch, watch]
- apiGroups: [scheduling.volcano.sh]
  resources: [queues]
  verbs: [list, watch]
# What limits the growth of a job, beside nodes, pods and queues.
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [list]
# What actions do: the operator executes plans. Without this rule the Brain only advises.
- apiGroups: [elastic.iml.github.io]
  resources: [scaleplans]
  verbs: [create, delete, list, watch]
# The HTTP API shows a job to those who may get it.
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
