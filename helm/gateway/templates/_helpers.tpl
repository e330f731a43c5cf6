{{- define "gateway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "gateway.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (default .Chart.Name .Values.nameOverride) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (default .Chart.Name .Values.nameOverride) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "gateway.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gateway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gateway.labels" -}}
{{- include "gateway.labelsOf" (dict "root" . "own" dict) }}
{{- end }}

{{- /* The labels of one object: its own win over those that all objects share, and what selects it over both. */ -}}
{{- define "gateway.labelsOf" -}}
{{- $chart := include "gateway.selectorLabels" .root | fromYaml }}
{{- $_ := set $chart "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") }}
{{- $_ := set $chart "app.kubernetes.io/version" .root.Chart.AppVersion }}
{{- $_ := set $chart "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- with .component }}
{{- $_ := set $chart "app.kubernetes.io/component" . }}
{{- end }}
{{- mergeOverwrite (dict) .root.Values.commonLabels (.own | default dict) $chart | toYaml }}
{{- end }}

{{- /* The annotations that all objects share, and those of one, which win: a block, or nothing. */ -}}
{{- define "gateway.annotations" -}}
{{- with mergeOverwrite (dict) .root.Values.commonAnnotations (.own | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gateway.isOpenShift" -}}
{{- if or (eq .Values.platform "openshift") (and (eq .Values.platform "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) }}true{{ end }}
{{- end }}

{{- /* OpenShift gives each namespace users and groups of its own. */ -}}
{{- define "gateway.podSecurityContext" -}}
{{- if include "gateway.isOpenShift" . }}
{{- toYaml (omit .Values.podSecurityContext "runAsUser" "runAsGroup" "fsGroup" "fsGroupChangePolicy") }}
{{- else }}
{{- toYaml .Values.podSecurityContext }}
{{- end }}
{{- end }}

{{- define "gateway.imagePullSecrets" -}}
{{- with concat .Values.global.imagePullSecrets .Values.imagePullSecrets | uniq }}
imagePullSecrets:
  {{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
  {{- end }}
{{- end }}
{{- end }}

{{- /* The label `job` of the release's metrics, as Prometheus' operator gives it to what a Service leads to. */ -}}
{{- define "gateway.job" -}}
{{- printf "%s-admin" (include "gateway.fullname" .) }}
{{- end }}

{{- define "gateway.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "gateway.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "gateway.image" -}}
{{- $registry := .Values.global.imageRegistry | default .Values.image.registry }}
{{- $repository := ternary (printf "%s/%s" $registry .Values.image.repository) .Values.image.repository (ne $registry "") }}
{{- with .Values.image.digest }}{{ printf "%s@%s" $repository . }}{{ else }}{{ printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}{{ end }}
{{- end }}

{{- /* Several gateways share the partitions: they have names, and a port to talk to one another. */ -}}
{{- define "gateway.isGroup" -}}
{{- if or (gt (int .Values.replicaCount) 1) .Values.autoscaling.enabled .Values.autoscaling.external }}true{{ end }}
{{- end }}

{{- /* A pod's name at which its peers find it; certificates are for all such names of a release. */ -}}
{{- define "gateway.peerDomain" -}}
{{- printf "%s-peers.%s.svc" (include "gateway.fullname" .) .Release.Namespace }}
{{- end }}

{{- /* A quantity of memory in whole MiB, rounded down. */ -}}
{{- define "gateway.mebibytes" -}}
{{- $text := ternary (printf "%.0f" .) (toString .) (kindIs "float64" .) }}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text }}
{{- $factors := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "" 1 }}
{{- $unit := trimPrefix $number $text }}
{{- if or (eq $number "") (not (hasKey $factors $unit)) }}
{{- fail (printf "resources.limits.memory: %s is no quantity that the chart understands: write it as 4Gi, 1.5Gi, 512Mi or 4G" $text) }}
{{- end }}
{{- divf (mulf $number (get $factors $unit)) 1048576 | floor | int }}
{{- end }}

{{- /* A duration as settings have them, e.g. 90, 500ms or 2m, in whole seconds and rounded up. */ -}}
{{- define "gateway.seconds" -}}
{{- $text := toString . | nospace | lower }}
{{- $number := regexFind "^[0-9.]+" $text }}
{{- $factor := get (dict "ms" 0.001 "m" 60 "h" 3600 "d" 86400) (trimPrefix $number $text) | default 1 }}
{{- mulf $number $factor | ceil }}
{{- end }}

{{- /* Everything that is an environment variable and no secret, by name; `config` wins where the chart lets it. */ -}}
{{- define "gateway.settings" -}}
{{- $settings := dict
  "GATEWAY_MODE" .Values.mode
  "GATEWAY_LOG" .Values.log
  "GATEWAY_HOST" "0.0.0.0"
  "GATEWAY_PORT" "8080"
  "GATEWAY_ADMIN_HOST" "0.0.0.0"
  "GATEWAY_ADMIN_PORT" (toString .Values.admin.port)
  "GATEWAY_PROBE_LISTEN" (printf "0.0.0.0:%d" (int .Values.probes.port))
  "GATEWAY_DATA_DIR" "/data"
}}
{{- $service := include "gateway.job" . }}
{{- $names := list $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace) }}
{{- $_ := set $settings "GATEWAY_ADMIN_HOSTS" (join "," $names) }}
{{- $_ := set $settings "GATEWAY_LOGGING_FORMAT" "json" }}
{{- if eq .Values.log "kafka" }}
{{- $_ := set $settings "GATEWAY_KAFKA_BOOTSTRAP_SERVERS" .Values.kafka.bootstrapServers }}
{{- $_ := set $settings "GATEWAY_KAFKA_SECURITY_PROTOCOL" .Values.kafka.securityProtocol }}
{{- if contains "SASL" .Values.kafka.securityProtocol }}
{{- with .Values.kafka.sasl }}
{{- $_ := set $settings "GATEWAY_KAFKA_SASL_MECHANISM" .mechanism }}
{{- if and .username (not .usernameKey) }}
{{- $_ := set $settings "GATEWAY_KAFKA_SASL_USERNAME" .username }}
{{- end }}
{{- if .existingSecret }}
{{- $_ := set $settings "GATEWAY_KAFKA_SASL_PASSWORD_FILE" "/etc/gateway/kafka-sasl/password" }}
{{- end }}
{{- with .passwordFile }}
{{- $_ := set $settings "GATEWAY_KAFKA_SASL_PASSWORD_FILE" . }}
{{- end }}
{{- range $name, $value := dict "TOKEN_URL" .oauth.tokenUrl "SCOPE" .oauth.scope "EXTENSIONS" .oauth.extensions }}
{{- if $value }}
{{- $_ := set $settings (printf "GATEWAY_KAFKA_OAUTH_%s" $name) $value }}
{{- end }}
{{- end }}
{{- if .oauth.caSecret }}
{{- $_ := set $settings "GATEWAY_KAFKA_OAUTH_CA_FILE" "/etc/gateway/kafka-oauth-ca/ca.crt" }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.kafka.tls.caSecret }}
{{- $_ := set $settings "GATEWAY_KAFKA_SSL_CA_FILE" "/etc/gateway/kafka-ca/ca.crt" }}
{{- end }}
{{- if .Values.kafka.tls.clientSecret }}
{{- $_ := set $settings "GATEWAY_KAFKA_SSL_CERT_FILE" "/etc/gateway/kafka-client/client.crt" }}
{{- $_ := set $settings "GATEWAY_KAFKA_SSL_KEY_FILE" "/etc/gateway/kafka-client/client.key" }}
{{- if .Values.kafka.tls.keyPasswordKey }}
{{- $_ := set $settings "GATEWAY_KAFKA_SSL_KEY_PASSWORD_FILE" "/etc/gateway/kafka-client/client.password" }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.secrets.existingSecret }}
{{- $_ := set $settings "GATEWAY_WRITE_KEYS_FILE" (printf "/etc/gateway/write-keys/%s" .Values.secrets.keys.writeKeys) }}
{{- end }}
{{- with .Values.snapshots.url }}
{{- $_ := set $settings "GATEWAY_SNAPSHOTS_URL" . }}
{{- $_ := set $settings "GATEWAY_SNAPSHOTS_INTERVAL" (toString $.Values.snapshots.interval) }}
{{- end }}
{{- range $name, $path := dict "IDENTITY_SECRET" .Values.secrets.files.identitySecret "ADMIN_TOKEN" .Values.secrets.files.adminToken "ADMIN_READ_TOKEN" .Values.secrets.files.adminReadToken "WRITE_KEYS" .Values.secrets.files.writeKeys }}
{{- if $path }}
{{- $_ := set $settings (printf "GATEWAY_%s_FILE" $name) $path }}
{{- end }}
{{- end }}
{{- if include "gateway.isGroup" . }}
{{- with .Values.zone }}
{{- $_ := set $settings "GATEWAY_ZONE" . }}
{{- end }}
{{- if .Values.peers.tls.existingSecret }}
{{- range $name, $file := dict "CERT" "tls.crt" "KEY" "tls.key" "CA" "ca.crt" }}
{{- $_ := set $settings (printf "GATEWAY_PEER_TLS_%s_FILE" $name) (printf "/etc/gateway/peers/%s" $file) }}
{{- end }}
{{- end }}
{{- end }}
{{- with (.Values.resources.limits).memory }}
{{- $mebibytes := include "gateway.mebibytes" . | int }}
{{- $_ := set $settings "GATEWAY_INDEX_MEMORY" (printf "%dMiB" (div $mebibytes 4)) }}
{{- $_ := set $settings "GATEWAY_BODY_MEMORY" (printf "%dMiB" (div $mebibytes 8)) }}
{{- end }}
{{- range $name, $value := .Values.config }}
{{- $_ := set $settings $name (toString $value) }}
{{- end }}
{{- toYaml $settings }}
{{- end }}

{{- /* Values that contradict one another: one sentence each, before anything is installed. */ -}}
{{- define "gateway.contradictions" -}}
{{- if and (include "gateway.isGroup" .) (eq .Values.log "sqlite") }}
{{- fail "replicaCount > 1 or autoscaling needs log: kafka, since the embedded log (sqlite) belongs to one pod" }}
{{- end }}
{{- if and (eq .Values.log "sqlite") .Values.kafka.bootstrapServers }}
{{- fail "log: sqlite stores nothing on Kafka, so kafka.bootstrapServers must be empty (or set log: kafka)" }}
{{- end }}
{{- if and (eq .Values.log "kafka") (not .Values.kafka.bootstrapServers) }}
{{- fail "log: kafka needs kafka.bootstrapServers (or set log: sqlite to try the gateway out without Kafka)" }}
{{- end }}
{{- $files := .Values.secrets.files }}
{{- if and (eq .Values.mode "production") (not .Values.secrets.existingSecret) (not (and $files.identitySecret $files.adminToken $files.writeKeys)) }}
{{- fail "mode: production needs secrets.existingSecret, a Secret with identity secret, admin token and write keys, or all three in secrets.files (or set mode: development)" }}
{{- end }}
{{- if and .Values.secrets.existingSecret (or $files.identitySecret $files.adminToken $files.adminReadToken $files.writeKeys) }}
{{- fail "secrets.existingSecret and secrets.files exclude each other: one of them has the secrets" }}
{{- end }}
{{- if and .Values.kafka.sasl.existingSecret .Values.kafka.sasl.passwordFile }}
{{- fail "kafka.sasl.existingSecret and kafka.sasl.passwordFile exclude each other: one of them has the password" }}
{{- end }}
{{- if and .Values.snapshots.url (ne .Values.log "kafka") }}
{{- fail "snapshots.url needs log: kafka, since the embedded log lies beside its index" }}
{{- end }}
{{- if and .Values.snapshots.drill.enabled (not .Values.snapshots.url) }}
{{- fail "snapshots.drill.enabled needs snapshots.url, the bucket with the copies" }}
{{- end }}
{{- $keys := int64 (get .Values.config "GATEWAY_INDEX_KEYS_MAX" | default 500000000) }}
{{- if and (eq .Values.log "kafka") (eq .Values.mode "production") (not .Values.persistence.enabled) (not .Values.snapshots.url) (gt $keys 20000000) }}
{{- fail (printf "persistence.enabled: false without snapshots.url: each new pod would read up to %d ids from the log before it serves; set snapshots.url, or config.GATEWAY_INDEX_KEYS_MAX to at most 20000000" $keys) }}
{{- end }}
{{- if and .Values.autoscaling.enabled .Values.autoscaling.external }}
{{- fail "autoscaling.enabled and autoscaling.external exclude each other: two autoscalers would fight" }}
{{- end }}
{{- if and .Values.command (not .Values.args) }}
{{- fail "command replaces the image's entry point, so args must name what to run, e.g. [gateway serve]" }}
{{- end }}
{{- if and (ne .Values.service.type "LoadBalancer") (or .Values.service.loadBalancerClass .Values.service.loadBalancerSourceRanges) }}
{{- fail "service.loadBalancerClass and service.loadBalancerSourceRanges need service.type: LoadBalancer" }}
{{- end }}
{{- if and (eq .Values.service.type "ClusterIP") (or .Values.service.externalTrafficPolicy .Values.service.nodePort) }}
{{- fail "service.externalTrafficPolicy and service.nodePort need service.type: LoadBalancer or NodePort" }}
{{- end }}
{{- if and (eq .Values.mode "production") (eq .Values.log "sqlite") (not .Values.persistence.enabled) }}
{{- fail "log: sqlite keeps the only copy of all events on the pod's volume, so mode: production needs persistence.enabled: true" }}
{{- end }}
{{- if contains "SASL" .Values.kafka.securityProtocol }}
{{- $mechanism := .Values.kafka.sasl.mechanism }}
{{- $isOauth := eq $mechanism "OAUTHBEARER" }}
{{- if ne $isOauth (ne .Values.kafka.sasl.oauth.tokenUrl "") }}
{{- fail "kafka.sasl.mechanism: OAUTHBEARER and kafka.sasl.oauth.tokenUrl need each other" }}
{{- end }}
{{- if not (or (eq $mechanism "AWS_MSK_IAM") (hasPrefix "file:" .Values.kafka.sasl.oauth.tokenUrl)) }}
{{- if not (or .Values.kafka.sasl.existingSecret .Values.kafka.sasl.passwordFile) }}
{{- fail (printf "kafka.securityProtocol: %s needs kafka.sasl.existingSecret, a Secret with the password, or kafka.sasl.passwordFile" .Values.kafka.securityProtocol) }}
{{- end }}
{{- if not (or .Values.kafka.sasl.username .Values.kafka.sasl.usernameKey) }}
{{- fail (printf "kafka.securityProtocol: %s needs kafka.sasl.username or kafka.sasl.usernameKey" .Values.kafka.securityProtocol) }}
{{- end }}
{{- end }}
{{- else if .Values.kafka.sasl.existingSecret }}
{{- fail (printf "kafka.sasl.existingSecret is not used with kafka.securityProtocol: %s" .Values.kafka.securityProtocol) }}
{{- end }}
{{- if and (or .Values.kafka.tls.caSecret .Values.kafka.tls.clientSecret) (not (contains "SSL" .Values.kafka.securityProtocol)) }}
{{- fail (printf "kafka.tls is not used with kafka.securityProtocol: %s" .Values.kafka.securityProtocol) }}
{{- end }}
{{- if ne (len (uniq (list 8080 (int .Values.admin.port) (int .Values.probes.port) (int .Values.peers.port)))) 4 }}
{{- fail "admin.port, probes.port and peers.port must differ, and none may be 8080, that of events" }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}
{{- fail "ingress.enabled needs ingress.hosts, the names under which events are sent" }}
{{- end }}
{{- if and .Values.ingress.enabled .Values.httpRoute.enabled }}
{{- fail "ingress.enabled and httpRoute.enabled exclude each other: two ways in would be two client addresses" }}
{{- end }}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
{{- fail "httpRoute.enabled needs httpRoute.parentRefs, the Gateway to attach to" }}
{{- end }}
{{- $drain := include "gateway.seconds" (get .Values.config "GATEWAY_DRAIN_TIMEOUT" | default 10) | int }}
{{- $stop := add $drain (ternary 25 5 (eq (include "gateway.isGroup" .) "true")) }}
{{- if le (int .Values.terminationGracePeriodSeconds) (add (int .Values.preStopSeconds) $stop) }}
{{- fail (printf "terminationGracePeriodSeconds (%d) must exceed preStopSeconds (%d) by more than %d: open commits may take %d s to finish, and partitions 20 s to be served by another gateway, if there is one" (int .Values.terminationGracePeriodSeconds) (int .Values.preStopSeconds) $stop $drain) }}
{{- end }}
{{- $egress := .Values.networkPolicy.egress }}
{{- $isClosed := and .Values.networkPolicy.enabled $egress.enabled (not $egress.extra) }}
{{- if and $isClosed (eq (get .Values.config "GATEWAY_TRACES" | toString | lower) "true") }}
{{- fail "config.GATEWAY_TRACES needs networkPolicy.egress.extra, a rule for the collector (or set networkPolicy.egress.enabled: false)" }}
{{- end }}
{{- $needsOut := or (eq .Values.kafka.sasl.mechanism "AWS_MSK_IAM") (hasPrefix "http" .Values.kafka.sasl.oauth.tokenUrl) }}
{{- if and $isClosed .Values.snapshots.url }}
{{- fail "snapshots.url needs networkPolicy.egress.extra, a rule for the bucket (or set networkPolicy.egress.enabled: false)" }}
{{- end }}
{{- if and $isClosed $needsOut (contains "SASL" .Values.kafka.securityProtocol) }}
{{- fail (printf "kafka.sasl.mechanism: %s needs networkPolicy.egress.extra, a rule for what gives its tokens (or set networkPolicy.egress.enabled: false)" .Values.kafka.sasl.mechanism) }}
{{- end }}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas must not exceed autoscaling.maxReplicas" }}
{{- end }}
{{- $own := list "GATEWAY_MODE" "GATEWAY_LOG" "GATEWAY_HOST" "GATEWAY_PORT" "GATEWAY_ADMIN_HOST" "GATEWAY_ADMIN_PORT" "GATEWAY_PROBE_LISTEN" "GATEWAY_DATA_DIR" "GATEWAY_KAFKA_BOOTSTRAP_SERVERS" "GATEWAY_KAFKA_SECURITY_PROTOCOL" "GATEWAY_KAFKA_SASL_MECHANISM" "GATEWAY_KAFKA_SASL_USERNAME" "GATEWAY_KAFKA_SASL_PASSWORD" "GATEWAY_KAFKA_SASL_PASSWORD_FILE" "GATEWAY_KAFKA_OAUTH_TOKEN_URL" "GATEWAY_KAFKA_OAUTH_SCOPE" "GATEWAY_KAFKA_OAUTH_EXTENSIONS" "GATEWAY_KAFKA_OAUTH_CA_FILE" "GATEWAY_KAFKA_SSL_CA_FILE" "GATEWAY_KAFKA_SSL_CERT_FILE" "GATEWAY_KAFKA_SSL_KEY_FILE" "GATEWAY_KAFKA_SSL_KEY_PASSWORD_FILE" "GATEWAY_WRITE_KEYS_FILE" "GATEWAY_IDENTITY_SECRET" "GATEWAY_ADMIN_TOKEN" "GATEWAY_ADMIN_READ_TOKEN" "GATEWAY_WORKER_ID" "GATEWAY_PEER_LISTEN" "GATEWAY_PEER_ADDRESS" "GATEWAY_PEER_TLS_CERT_FILE" "GATEWAY_PEER_TLS_KEY_FILE" "GATEWAY_PEER_TLS_CA_FILE" "GATEWAY_ZONE" "GATEWAY_SNAPSHOTS_URL" "GATEWAY_SNAPSHOTS_INTERVAL" }}
{{- range $name, $_ := .Values.config }}
{{- if has $name $own }}
{{- fail (printf "config.%s is set by the chart: change the value that it is made of" $name) }}
{{- end }}
{{- end }}
{{- $partitions := int (.Values.kafka.partitions | default (get .Values.config "GATEWAY_PARTITIONS") | default 8) }}
{{- $pods := ternary (int .Values.autoscaling.maxReplicas) (int .Values.replicaCount) (or .Values.autoscaling.enabled .Values.autoscaling.external) }}
{{- if gt $pods $partitions }}
{{- fail (printf "%d pods for %d partitions: a pod without a partition has nothing to do" $pods $partitions) }}
{{- end }}
{{- end }}
