{{- define "lakemirror.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* At most 52 characters: some names get an ending. */}}
{{- define "lakemirror.fullname" -}}
{{- $name := include "lakemirror.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{ .Values.fullnameOverride | default $full | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "lakemirror.selector" -}}
app.kubernetes.io/name: {{ include "lakemirror.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "lakemirror.labels" -}}
{{ include "lakemirror.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "lakemirror.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "lakemirror.fullname" .) }}
{{- else -}}
{{ required "serviceAccount.name is needed with serviceAccount.create=false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "lakemirror.image" -}}
{{ include "lakemirror.reference" (list .Values.image .Chart.AppVersion) }}
{{- end }}

{{- define "lakemirror.driverImage" -}}
{{ include "lakemirror.reference" (list .Values.driverImage .Chart.AppVersion) }}
{{- end }}

{{- /* An image by its digest if it has one, else by its tag. */}}
{{- define "lakemirror.reference" -}}
{{- $image := first . -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default (last .) }}
{{- end -}}
{{- end }}

{{- /* As Pod Security's level `restricted` wants it. */}}
{{- define "lakemirror.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "lakemirror.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* How often metrics are scraped, and what is done to them; the same for the operator and for drivers. */}}
{{- define "lakemirror.scrape" -}}
interval: {{ .Values.podMonitor.interval }}
{{- with .Values.podMonitor.relabelings }}
relabelings:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.podMonitor.metricRelabelings }}
metricRelabelings:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* What a scrape may return at most, so that no target floods Prometheus. 0 is no limit. */}}
{{- define "lakemirror.scrapeLimits" -}}
{{- with .Values.podMonitor }}
sampleLimit: {{ int64 .sampleLimit }}
labelLimit: {{ int64 .labelLimit }}
labelNameLengthLimit: {{ int64 .labelNameLengthLimit }}
labelValueLengthLimit: {{ int64 .labelValueLengthLimit }}
{{- end }}
{{- end }}

{{/* The images are for Linux. Values take precedence. */}}
{{- define "lakemirror.nodeSelector" -}}
{{- merge (dict) .Values.nodeSelector (dict "kubernetes.io/os" "linux") | toYaml }}
{{- end }}

{{/* Labels, and annotations, by which the injectors of service meshes leave a pod alone: with a proxy beside it, it would not end. */}}
{{- define "lakemirror.withoutSidecars" -}}
sidecar.istio.io/inject: "false"
linkerd.io/inject: disabled
kuma.io/sidecar-injection: disabled
consul.hashicorp.com/connect-inject: "false"
{{- end }}
