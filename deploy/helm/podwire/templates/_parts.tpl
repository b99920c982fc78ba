{{- define "podwire.labels" -}}
app.kubernetes.io/name: podwire
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "podwire.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "podwire.apiServer" -}}
{{- with .Values.apiServer }}{{ if .host -}}
- name: KUBERNETES_SERVICE_HOST
  value: {{ .host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .port | quote }}
{{- end }}{{ end }}
{{- end }}

{{- /* The network of all pods, as flannel's net-conf.json. */ -}}
{{- define "podwire.netConf" -}}
{{- $conf := dict "Backend" .Values.network.backend -}}
{{- with .Values.network.ipv4 }}{{ $_ := set $conf "Network" . }}{{ else }}{{ $_ := set $conf "EnableIPv4" false }}{{ end -}}
{{- with .Values.network.ipv6 }}{{ $_ := set $conf "EnableIPv6" true }}{{ $_ := set $conf "IPv6Network" . }}{{ end -}}
{{- if not (or .Values.network.ipv4 .Values.network.ipv6) }}{{ fail "network.ipv4 or network.ipv6 is needed" }}{{ end -}}
{{ toPrettyJson $conf }}
{{- end }}

{{- /* Calico: the rights to allocate addresses from blocks; the argument is the verbs for reading. */ -}}
{{- define "podwire.blockRules" -}}
- apiGroups: [crd.projectcalico.org, projectcalico.org]
  resources: [ippools, ipreservations, ipamconfigs, ipamconfigurations]
  verbs: [{{ . }}]
- apiGroups: [crd.projectcalico.org, projectcalico.org]
  resources: [ipamblocks, blockaffinities, ipamhandles]
  verbs: [{{ . }}, create, update, delete]
{{- end }}

{{- /* Calico: the conflist. require_mtu_file makes ADD fail until the agent has written the MTU; runtimes that support STATUS wait for the agent. */ -}}
{{- define "podwire.conflist" -}}
{
  "cniVersion": "1.0.0",
  "cniVersions": ["1.0.0", "1.1.0"],
  "name": "k8s-pod-network",
  "plugins": [
    {
      "type": "calico",
      "datastore_type": "kubernetes",
      "require_mtu_file": true,
      "policy": {"type": "k8s"},
      "ipam": {"type": "calico-ipam", "assign_ipv4": {{ .Values.network.ipv4 | empty | not | toString | quote }}, "assign_ipv6": {{ .Values.network.ipv6 | empty | not | toString | quote }}}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
{{- end }}
