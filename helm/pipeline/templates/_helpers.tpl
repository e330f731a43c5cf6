{{- define "pipeline.fullname" -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "pipeline.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pipeline.image" -}}
{{- with .Values.global.imageRegistry | default .Values.image.registry }}{{ . }}/{{ end }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{- /* The names of the pull secrets, as a list of YAML. */ -}}
{{- define "pipeline.pullSecrets" -}}
{{- range concat .Values.global.imagePullSecrets .Values.imagePullSecrets | uniq }}
- {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- define "pipeline.serviceAccountName" -}}
{{- default (.Values.serviceAccount.create | ternary (include "pipeline.fullname" .) "") .Values.serviceAccount.name }}
{{- end }}

{{- define "pipeline.source" -}}
{{- printf "kafka://%s/%s" .Values.kafka.bootstrapServers .Values.topic }}
{{- end }}

{{- define "pipeline.contradictions" -}}
{{- if not .Values.kafka.bootstrapServers }}
{{- fail "kafka.bootstrapServers is needed: the jobs read the gateway's topic" }}
{{- end }}
{{- if contains "SASL" .Values.kafka.securityProtocol }}
{{- if ne (eq .Values.kafka.sasl.mechanism "OAUTHBEARER") (ne .Values.kafka.sasl.oauth.tokenUrl "") }}
{{- fail "kafka.sasl.mechanism: OAUTHBEARER and kafka.sasl.oauth.tokenUrl need each other" }}
{{- end }}
{{- if not (or (eq .Values.kafka.sasl.mechanism "AWS_MSK_IAM") (and .Values.kafka.sasl.existingSecret .Values.kafka.sasl.username)) }}
{{- fail (printf "kafka.securityProtocol: %s needs kafka.sasl.username and kafka.sasl.existingSecret" .Values.kafka.securityProtocol) }}
{{- end }}
{{- else if .Values.kafka.sasl.existingSecret }}
{{- fail (printf "kafka.sasl.existingSecret is not used with kafka.securityProtocol: %s" .Values.kafka.securityProtocol) }}
{{- end }}
{{- if and .Values.kafka.tls.caSecret (not (contains "SSL" .Values.kafka.securityProtocol)) }}
{{- fail (printf "kafka.tls is not used with kafka.securityProtocol: %s" .Values.kafka.securityProtocol) }}
{{- end }}
{{- if and .Values.audit.enabled (or .Values.audit.deep .Values.audit.stats) (not .Values.audit.existingSecret) }}
{{- fail "audit.deep and audit.stats need audit.existingSecret, the gateway's Secret with identity-secret and admin-token" }}
{{- end }}
{{- if and .Values.archive.operator (hasPrefix "/data" .Values.archive.out) }}
{{- fail "archive.operator runs several pods, and they cannot share /data: set archive.out to a lake, e.g. s3a://lake/events" }}
{{- end }}
{{- if and .Values.archive.operator .Values.kafka.tls.caSecret }}
{{- fail "kafka.tls.caSecret reaches scheduled jobs alone: with archive.operator put the authorities into the image" }}
{{- end }}
{{- if eq .Values.archive.operator "apache" }}
{{- if .Values.envFrom }}
{{- fail "envFrom does not reach pods that Spark makes: with archive.operator: apache name each variable in extraEnv" }}
{{- end }}
{{- range .Values.extraEnv }}
{{- if and .valueFrom (not .valueFrom.secretKeyRef) }}
{{- fail (printf "extraEnv: %s: with archive.operator: apache a variable has a value or a valueFrom.secretKeyRef" .name) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.serviceAccount.annotations (not .Values.serviceAccount.create) }}
{{- fail "serviceAccount.annotations are those of an account that serviceAccount.create makes" }}
{{- end }}
{{- with .Values.erasures }}
{{- if ne (empty .path) (empty .existingSecret) }}
{{- fail "erasures.path and erasures.existingSecret need each other: the list, and the key of its hashes" }}
{{- end }}
{{- if ne (empty .existingClaim) (not (hasPrefix "/erasures" .path)) }}
{{- fail "erasures.existingClaim and an erasures.path below /erasures need each other" }}
{{- end }}
{{- if and $.Values.archive.operator (hasPrefix "/" .path) }}
{{- fail "archive.operator runs other pods than scheduled jobs, and they cannot share a volume: set erasures.path to a lake, e.g. s3a://lake/erasures" }}
{{- end }}
{{- end }}
{{- if not (or .Values.archive.enabled .Values.audit.enabled) }}
{{- fail "archive.enabled and audit.enabled are both false: there is nothing to install" }}
{{- end }}
{{- end }}

{{- define "pipeline.login" -}}
{{- with .Values.kafka.sasl }}
GATEWAY_KAFKA_SASL_MECHANISM: {{ .mechanism }}
{{- range $name, $value := dict "SASL_USERNAME" .username "OAUTH_TOKEN_URL" .oauth.tokenUrl "OAUTH_SCOPE" .oauth.scope "OAUTH_EXTENSIONS" .oauth.extensions }}
{{- if $value }}
GATEWAY_KAFKA_{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Where the list of erased persons and its key are, as variables; nothing without a list. */ -}}
{{- define "pipeline.erasures" -}}
{{- with .Values.erasures }}
{{- if .path }}
PIPELINE_ERASURES: {{ .path }}
PIPELINE_ERASURE_KEY_FILE: /etc/gateway/erasures/{{ .secretKey }}
{{- end }}
{{- end }}
{{- end }}

{{- define "pipeline.kafkaEnv" -}}
- name: GATEWAY_KAFKA_SECURITY_PROTOCOL
  value: {{ .Values.kafka.securityProtocol }}
{{- if contains "SASL" .Values.kafka.securityProtocol }}
{{- range $name, $value := include "pipeline.login" . | fromYaml }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- if .Values.kafka.sasl.existingSecret }}
- name: GATEWAY_KAFKA_SASL_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .Values.kafka.sasl.existingSecret }}
      key: {{ .Values.kafka.sasl.passwordKey }}
{{- end }}
{{- end }}
{{- if .Values.kafka.tls.caSecret }}
- name: GATEWAY_KAFKA_SSL_CA_FILE
  value: /etc/gateway/kafka-ca/ca.crt
{{- end }}
{{- end }}

{{- /* All variables of a container: Kubernetes takes the last of two with one name, the chart's. */ -}}
{{- define "pipeline.env" -}}
{{- with .Values.extraEnv }}
{{- toYaml . }}
{{ end }}
{{- include "pipeline.kafkaEnv" . }}
{{- range $name, $value := include "pipeline.erasures" . | fromYaml }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- /* `extraEnv` as Spark's own settings, for an operator that has no field of it. */ -}}
{{- define "pipeline.sparkEnv" -}}
{{- range .Values.extraEnv }}
{{- $name := .name }}
{{- if .valueFrom }}
{{- with .valueFrom.secretKeyRef }}
spark.kubernetes.driver.secretKeyRef.{{ $name }}: {{ printf "%s:%s" .name .key }}
spark.kubernetes.executor.secretKeyRef.{{ $name }}: {{ printf "%s:%s" .name .key }}
{{- end }}
{{- else }}
spark.kubernetes.driverEnv.{{ $name }}: {{ .value | quote }}
spark.executorEnv.{{ $name }}: {{ .value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "pipeline.archiveArgs" -}}
- archive
- --source={{ include "pipeline.source" . }}
- --out={{ .Values.archive.out }}
- --format={{ .Values.archive.format }}
{{- if .Values.archive.operator }}
- --checkpoint={{ .Values.archive.out }}.checkpoint
- --interval=30s
- --metrics-port=9095
{{- else }}
- --once
{{- end }}
{{- range .Values.archive.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- define "pipeline.auditArgs" -}}
- audit
- --source={{ include "pipeline.source" . }}
- --since-last=/data/audit
- --report=/data/audit-report
{{- with .Values.audit.stats }}
- --stats={{ . }}
- --admin-token=$(ADMIN_TOKEN)
{{- end }}
{{- if .Values.audit.deep }}
- --deep
{{- end }}
{{- range .Values.audit.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{- /* A CronJob; takes root, name of the job, its schedule and its arguments. */ -}}
{{- define "pipeline.cronjob" -}}
apiVersion: batch/v1
kind: CronJob
metadata:
  name: {{ include "pipeline.fullname" .root }}-{{ .job }}
  labels:
    {{- include "pipeline.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .job }}
spec:
  schedule: {{ .schedule | quote }}
  # Two runs would fight for one sink; the ledger would refuse one of them.
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 600
  successfulJobsHistoryLimit: 1
  failedJobsHistoryLimit: 3
  jobTemplate:
    spec:
      # Tried once: a violated audit stays violated, and an archive goes on at the next time.
      backoffLimit: 0
      activeDeadlineSeconds: {{ .root.Values.activeDeadlineSeconds }}
      template:
        metadata:
          labels:
            {{- include "pipeline.labels" .root | nindent 12 }}
            app.kubernetes.io/component: {{ .job }}
            {{- with .root.Values.podLabels }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
        spec:
          restartPolicy: Never
          {{- with include "pipeline.serviceAccountName" .root }}
          serviceAccountName: {{ . }}
          {{- end }}
          automountServiceAccountToken: {{ .root.Values.serviceAccount.automount }}
          enableServiceLinks: false
          {{- with include "pipeline.pullSecrets" .root | fromYamlArray }}
          imagePullSecrets:
            {{- range . }}
            - name: {{ . }}
            {{- end }}
          {{- end }}
          securityContext:
            {{- toYaml .root.Values.podSecurityContext | nindent 12 }}
          containers:
            - name: {{ .job }}
              image: {{ include "pipeline.image" .root | quote }}
              imagePullPolicy: {{ .root.Values.image.pullPolicy }}
              args:
                {{- .args | nindent 16 }}
              {{- with .root.Values.envFrom }}
              envFrom:
                {{- toYaml . | nindent 16 }}
              {{- end }}
              env:
                {{- include "pipeline.env" .root | nindent 16 }}
                {{- .env | nindent 16 }}
              securityContext:
                {{- toYaml .root.Values.securityContext | nindent 16 }}
              resources:
                {{- toYaml .root.Values.resources | nindent 16 }}
              volumeMounts:
                - name: data
                  mountPath: /data
                - name: tmp
                  mountPath: /tmp
                {{- if .root.Values.kafka.tls.caSecret }}
                - name: kafka-ca
                  mountPath: /etc/gateway/kafka-ca
                  readOnly: true
                {{- end }}
                {{- if .root.Values.erasures.path }}
                - name: erasures-key
                  mountPath: /etc/gateway/erasures
                  readOnly: true
                {{- end }}
                {{- if .root.Values.erasures.existingClaim }}
                - name: erasures
                  mountPath: /erasures
                  readOnly: true
                {{- end }}
          volumes:
            - name: data
              persistentVolumeClaim:
                claimName: {{ include "pipeline.fullname" .root }}
            - name: tmp
              emptyDir: {}
            {{- with .root.Values.kafka.tls }}
            {{- if .caSecret }}
            - name: kafka-ca
              secret:
                secretName: {{ .caSecret }}
                items:
                  - key: {{ .caKey }}
                    path: ca.crt
            {{- end }}
            {{- end }}
            {{- with .root.Values.erasures }}
            {{- if .path }}
            - name: erasures-key
              secret:
                secretName: {{ .existingSecret }}
                items:
                  - key: {{ .secretKey }}
                    path: {{ .secretKey }}
            {{- end }}
            {{- if .existingClaim }}
            - name: erasures
              persistentVolumeClaim:
                claimName: {{ .existingClaim }}
                readOnly: true
            {{- end }}
            {{- end }}
          {{- with .root.Values.nodeSelector }}
          nodeSelector:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .root.Values.affinity }}
          affinity:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .root.Values.tolerations }}
          tolerations:
            {{- toYaml . | nindent 12 }}
          {{- end }}
{{- end }}
