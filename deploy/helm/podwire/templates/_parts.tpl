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

{{- /* Whether the agents serve Services: "true" or nothing. Without a cluster, as in `helm template`, lookup finds nothing at all,
       so `auto` must see a namespace that every cluster has before it concludes that there is no kube-proxy. Agents that are not
       told the API server's address reach it through a Service, so another program serves Services. */ -}}
{{- define "podwire.services" -}}
{{- $wanted := .Values.agent.services | toString -}}
{{- $is_cluster := lookup "v1" "Namespace" "" "kube-system" -}}
{{- $knows_server := or .Values.apiServer.host (lookup "v1" "ConfigMap" .Release.Namespace "kubernetes-services-endpoint") -}}
{{- $serves := eq $wanted "true" -}}
{{- if eq $wanted "auto" -}}
{{- $has_proxy := or (lookup "apps/v1" "DaemonSet" "kube-system" "kube-proxy") (contains "k3s" .Capabilities.KubeVersion.Version) -}}
{{- range (lookup "v1" "Pod" "kube-system" "").items -}}
{{- if hasPrefix "kube-proxy" .metadata.name }}{{ $has_proxy = true }}{{ end -}}
{{- end -}}
{{- $serves = and $is_cluster $knows_server (not $has_proxy) -}}
{{- else if not (has $wanted (list "true" "false")) -}}
{{- fail "agent.services must be auto, true or false" -}}
{{- end -}}
{{- if and $serves $is_cluster (not $knows_server) -}}
{{- fail "agents that serve Services cannot reach the API server through a Service: set apiServer.host, or create the ConfigMap kubernetes-services-endpoint (docs/kubernetes.md), or set agent.services to false" -}}
{{- end -}}
{{- if $serves }}true{{ end -}}
{{- end }}

{{- /* The rights to serve Services. */ -}}
{{- define "podwire.servicesRules" -}}
- apiGroups: [""]
  resources: [services, nodes]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
- apiGroups: [networking.k8s.io]
  resources: [servicecidrs]
  verbs: [list, watch]
{{- end }}

{{- /* The arguments to serve Services. */ -}}
{{- define "podwire.servicesArguments" -}}
- --services=kubernetes
{{- with .Values.services.nodePortAddresses }}
- {{ printf "--nodeport-addresses=%s" (join "," .) | quote }}
{{- end }}
{{- if .Values.services.cleanupKubeProxy }}
- --cleanup-kube-proxy
{{- end }}
{{- end }}
