{{- /*
What the operator may do in a namespace that it looks after. The last two rules are there because nobody can grant what he may
not do himself: the driver's Role has them.
*/}}
{{- define "lakemirror.rules" -}}
- apiGroups: [lakemirror.io]
  resources: [cdcpipelines]
  verbs: [get, list, watch, patch]
- apiGroups: [lakemirror.io]
  resources: [cdcpipelines/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [configmaps, services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs, cronjobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
{{- if .Values.backends.kubeflow }}
- apiGroups: [sparkoperator.k8s.io]
  resources: [sparkapplications]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
{{- if .Values.backends.apache }}
- apiGroups: [spark.apache.org]
  resources: [sparkapplications]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete, deletecollection]
{{- end }}

{{- /* What it may do in its own namespace besides: hold the Lease. */}}
{{- define "lakemirror.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update]
{{- end }}
