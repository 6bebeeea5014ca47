{{/* The repository of the components, with its registry. */}}
{{- define "gangline.repository" -}}
{{- with .Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ .Values.image.repository }}
{{- end }}

{{/* The image of the components. */}}
{{- define "gangline.image" -}}
{{- $i := .Values.image -}}
{{- $name := include "gangline.repository" . -}}
{{- if $i.digest }}{{ printf "%s@%s" $name $i.digest }}{{ else }}{{ printf "%s:%s" $name ($i.tag | default .Chart.AppVersion) }}{{ end -}}
{{- end }}

{{/* The image of initializers: beside that of the components, unless it is given. */}}
{{- define "gangline.initializerImage" -}}
{{- $name := include "gangline.repository" . -}}
{{- .Values.runtimes.initializerImage | default (printf "%s-initializer:%s" $name (.Values.image.tag | default .Chart.AppVersion)) }}
{{- end }}

{{/* Recommended labels of an object of a component: dict root, component. */}}
{{- define "gangline.labels" -}}
app.kubernetes.io/name: gangline-{{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/part-of: gangline
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{/* The selector never changes between releases: it is immutable in a Deployment. */}}
{{- define "gangline.selector" -}}
app.kubernetes.io/name: gangline-{{ .component }}
{{- end }}

{{/* The name of the components' PriorityClass, if there is one: dict root, values. */}}
{{- define "gangline.priority" -}}
{{- if .values.priorityClassName }}{{ .values.priorityClassName }}{{ else if .root.Values.priorityClass.create }}gangline-system{{ end -}}
{{- end }}

{{/* What is common to the pods of all components: dict root, values. */}}
{{- define "gangline.pod" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with include "gangline.priority" . }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.podSecurityContext }}
securityContext: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints: {{ toYaml . | nindent 2 }}
{{- end }}
affinity:
  {{- if .values.affinity }}
  {{- toYaml .values.affinity | nindent 2 }}
  {{- else }}
  # Two replicas on two nodes, if there are two.
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{ include "gangline.selector" . | nindent 14 }}
  {{- end }}
{{- end }}

{{/* What is common to the containers of all components. */}}
{{- define "gangline.container" -}}
image: {{ include "gangline.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
# Server-side apply of Kubernetes 1.20 needs the protocols, which are a part of the keys.
ports:
  - name: metrics
    containerPort: 8080
    protocol: TCP
  - name: health
    containerPort: 8081
    protocol: TCP
  {{- with .ports }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
# Until the first answer; the liveness probe begins afterwards. A busy node starts programs slowly, and they
# need more than a second to answer: nothing is restarted for that.
startupProbe:
  httpGet:
    path: /healthz
    port: health
  timeoutSeconds: 5
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet:
    path: /healthz
    port: health
  timeoutSeconds: 5
readinessProbe:
  httpGet:
    path: /readyz
    port: health
  timeoutSeconds: 5
resources: {{ toYaml .values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{/* A ClusterRole and its binding, or with namespaces a Role and its binding in each: dict root, name, component, namespaces, rules. */}}
{{- define "gangline.role" -}}
{{- $in := . }}
{{- range $namespace := (.namespaces | default (list "")) }}
{{- $scope := ternary "Role" "ClusterRole" (ne $namespace "") }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $scope }}
metadata:
  name: {{ $in.name }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{ include "gangline.labels" $in | nindent 4 }}
rules: {{ $in.rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $scope }}Binding
metadata:
  name: {{ $in.name }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels: {{ include "gangline.labels" $in | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $scope }}
  name: {{ $in.name }}
subjects:
  - kind: ServiceAccount
    name: gangline-{{ $in.component }}
    namespace: {{ $in.root.Release.Namespace }}
{{- end }}
{{- end }}
