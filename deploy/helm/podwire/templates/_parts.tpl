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
