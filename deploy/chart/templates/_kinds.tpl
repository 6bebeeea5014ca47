{{/* Group and plural of every kind; the tests compare them with the kinds of the program. */}}
{{- define "gangline.kinds" -}}
PyTorchJob: {group: kubeflow.org, plural: pytorchjobs}
TFJob: {group: kubeflow.org, plural: tfjobs}
JAXJob: {group: kubeflow.org, plural: jaxjobs}
XGBoostJob: {group: kubeflow.org, plural: xgboostjobs}
MPIJob: {group: kubeflow.org, plural: mpijobs}
MSJob: {group: mindspore.gitee.com, plural: msjobs}
PaddleJob: {group: batch.paddlepaddle.org, plural: paddlejobs}
ElasticJob: {group: elastic.iml.github.io, plural: elasticjobs}
{{- end }}

{{/* The kinds that the operator runs, as a map like gangline.kinds. */}}
{{- define "gangline.enabledKinds" -}}
{{- $all := include "gangline.kinds" . | fromYaml }}
{{- if not .Values.kinds }}{{ toYaml $all }}{{ else }}
{{- range .Values.kinds }}
{{- if not (hasKey $all .) }}{{ fail (printf "kinds: %q is not a kind of job; known: %s" . (keys $all | sortAlpha | join ", ")) }}{{ end }}
{{ . }}: {{ toJson (get $all .) }}
{{- end }}{{ end }}
{{- end }}
