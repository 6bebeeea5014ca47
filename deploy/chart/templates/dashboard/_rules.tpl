{{/* Rules of the dashboard in namespaces, for a map of kinds. It shows each viewer only what that viewer may read. */}}
{{- define "gangline.dashboard.rules" }}
{{- range $kind, $r := . }}
- apiGroups: [{{ $r.group }}]
  resources: [{{ $r.plural }}]
  verbs: [get, list, watch]
{{- end }}
- apiGroups: [""]
  resources: [pods, events]
  verbs: [get, list, watch]
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [get, list, watch]
# Logs and the ends of logs in diagnoses; the goodput that masters of elastic jobs publish.
- apiGroups: [""]
  resources: [pods/log, configmaps]
  verbs: [get]
- apiGroups: [metrics.k8s.io]
  resources: [pods]
  verbs: [get, list]
# Who did what, as events of the jobs.
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
# What the figures of the scheduler depend on.
- apiGroups: [""]
  resources: [persistentvolumeclaims, resourcequotas]
  verbs: [list]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [list]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list]
{{- end }}
