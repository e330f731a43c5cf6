{{- /* The variables of a gateway and of its commands, but for what a worker of a group has. */ -}}
{{- define "gateway.environment" -}}
{{- $settings := include "gateway.settings" . | fromYaml }}
{{- range $name, $value := $settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with .Values.secrets }}
{{- if .existingSecret }}
- name: GATEWAY_IDENTITY_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .keys.identitySecret }}
- name: GATEWAY_ADMIN_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .keys.adminToken }}
- name: GATEWAY_ADMIN_READ_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .keys.adminReadToken }}
      optional: true
{{- end }}
{{- end }}
{{- with .Values.kafka.sasl }}
{{- if and .existingSecret .usernameKey }}
- name: GATEWAY_KAFKA_SASL_USERNAME
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .usernameKey }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Where the secrets of the volumes below are. */ -}}
{{- define "gateway.secretMounts" -}}
{{- if .Values.secrets.existingSecret }}
- name: write-keys
  mountPath: /etc/gateway/write-keys
  readOnly: true
{{- end }}
{{- if and (eq .Values.log "kafka") .Values.kafka.sasl.existingSecret }}
- name: kafka-sasl
  mountPath: /etc/gateway/kafka-sasl
  readOnly: true
{{- end }}
{{- if and (eq .Values.log "kafka") .Values.kafka.sasl.oauth.caSecret }}
- name: kafka-oauth-ca
  mountPath: /etc/gateway/kafka-oauth-ca
  readOnly: true
{{- end }}
{{- if and (eq .Values.log "kafka") .Values.kafka.tls.caSecret }}
- name: kafka-ca
  mountPath: /etc/gateway/kafka-ca
  readOnly: true
{{- end }}
{{- if and (eq .Values.log "kafka") .Values.kafka.tls.clientSecret }}
- name: kafka-client
  mountPath: /etc/gateway/kafka-client
  readOnly: true
{{- end }}
{{- end }}

{{- /* Secrets as volumes: write keys, and what the login at Kafka needs. */ -}}
{{- define "gateway.secretVolumes" -}}
{{- with .Values.secrets }}
{{- if .existingSecret }}
- name: write-keys
  secret:
    secretName: {{ .existingSecret }}
    items:
      - key: {{ .keys.writeKeys }}
        path: {{ .keys.writeKeys }}
{{- end }}
{{- end }}
{{- with .Values.kafka.sasl }}
{{- if and (eq $.Values.log "kafka") .existingSecret }}
- name: kafka-sasl
  secret:
    secretName: {{ .existingSecret }}
    items:
      - key: {{ .passwordKey }}
        path: password
{{- end }}
{{- if and (eq $.Values.log "kafka") .oauth.caSecret }}
- name: kafka-oauth-ca
  secret:
    secretName: {{ .oauth.caSecret }}
    items:
      - key: {{ .oauth.caKey }}
        path: ca.crt
{{- end }}
{{- end }}
{{- with .Values.kafka.tls }}
{{- if and (eq $.Values.log "kafka") .caSecret }}
- name: kafka-ca
  secret:
    secretName: {{ .caSecret }}
    items:
      - key: {{ .caKey }}
        path: ca.crt
{{- end }}
{{- if and (eq $.Values.log "kafka") .clientSecret }}
- name: kafka-client
  secret:
    secretName: {{ .clientSecret }}
    items:
      - key: {{ .certKey }}
        path: client.crt
      - key: {{ .keyKey }}
        path: client.key
      {{- if .keyPasswordKey }}
      - key: {{ .keyPasswordKey }}
        path: client.password
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
