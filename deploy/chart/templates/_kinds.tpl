{{/* Every kind by the name that "gangline operator --enable-scheme" knows; the tests compare them. */}}
{{- define "gangline.kinds" -}}
PyTorchJob: {group: kubeflow.org, plural: pytorchjobs, scalable: true}
TFJob: {group: kubeflow.org, plural: tfjobs, scalable: true}
JAXJob: {group: kubeflow.org, plural: jaxjobs, scalable: true}
XGBoostJob: {group: kubeflow.org, plural: xgboostjobs, scalable: false}
MPIJob: {group: kubeflow.org, plural: mpijobs, scalable: false}
PaddleJob.kubeflow.org: {group: kubeflow.org, plural: paddlejobs, scalable: true}
MSJob: {group: mindspore.gitee.com, plural: msjobs, scalable: true}
PaddleJob: {group: batch.paddlepaddle.org, plural: paddlejobs, scalable: false}
ElasticJob: {group: elastic.iml.github.io, plural: elasticjobs, scalable: true}
TrainJob: {group: trainer.kubeflow.org, plural: trainjobs, scalable: false}
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
