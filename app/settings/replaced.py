"""Settings of earlier versions, and what replaces each: a start with one of them is refused."""

from collections.abc import Mapping

_KEY_FILE = "it is `{}` under `defaults:` in the file of GATEWAY_WRITE_KEYS_FILE now"

REPLACED: Mapping[str, str] = {
    # now constants
    "GATEWAY_LANE_BACKOFF": "the first pause of a failed partition is 0.2 s",
    "GATEWAY_LANE_BACKOFF_MAX": "the longest pause of a failed partition is 5 s",
    "GATEWAY_REFENCE_MIN": "a partition that another gateway fenced is fenced again after 1 to 5 s",
    "GATEWAY_REFENCE_MAX": "a partition that another gateway fenced is fenced again after 1 to 5 s",
    "GATEWAY_FENCED_AGAIN": "a partition that is fenced twice within 60 s is left to the other gateway",
    "GATEWAY_HOUSEKEEPING_INTERVAL": "a partition checks its index against the log every 30 s",
    "GATEWAY_KAFKA_TRANSACTION_TIMEOUT": "Kafka ends an unfinished takeover after 30 s",
    "GATEWAY_DRAIN_LINGER": "a gateway that stops answers 503 for 0.5 s after its last commit",
    "GATEWAY_TRIM_INTERVAL": "expired events are deleted from the embedded log every 10 s",
    "GATEWAY_TRIM_RECORDS_MAX": "expired events are deleted 5,000 of a partition at a time",
    "GATEWAY_DISK_CHECK_INTERVAL": "free disk space is checked every second",
    "GATEWAY_WRITE_KEYS_INTERVAL": "the write key file is checked every second, and read at once on SIGHUP",
    "GATEWAY_BODY_GRACE": "a request body may take 30 s at any pace",
    "GATEWAY_BODY_RATE_MIN": "a request body must come by 2 KiB a second on average after 30 s",
    "GATEWAY_BODY_TIMEOUT": "a request body may take as long as it comes by 2 KiB a second after 30 s",
    "GATEWAY_BODY_KEYLESS_BYTES_MAX": "a body may have GATEWAY_BODY_BYTES_MAX wherever its write key stands",
    "GATEWAY_HEAD_BYTES_MAX": "a request line and its headers may have 64 KiB",
    "GATEWAY_HEAD_TIMEOUT": "a request line and its headers may take 10 s to arrive",
    "GATEWAY_SEND_TIMEOUT": "a client may leave its answers unread for 30 s",
    "GATEWAY_RETRY_AFTER_MAX": "Retry-After is at most 30 s, or 300 s for a used-up quota",
    "GATEWAY_QUOTA_PENALTY": "the answer to a used-up quota is delayed by 0.5 s",
    "GATEWAY_EVENT_DEPTH_MAX": "an event may be nested 32 deep",
    "GATEWAY_REQUEST_GROWTH_MAX": "batch-level fields may add 5 MiB to one request's events",
    # derived
    "GATEWAY_BODY_COMPRESSED_BYTES_MAX": "it is half of GATEWAY_BODY_BYTES_MAX",
    "GATEWAY_REQUEST_BYTES_MAX": "it is twice GATEWAY_BODY_BYTES_MAX",
    "GATEWAY_BATCH_BYTES_MAX": "it is GATEWAY_EVENT_BYTES_MAX and 100 KiB, or 256 KiB if that is more",
    "GATEWAY_QUEUE_EVENTS_MAX": "it is 40,000",
    "GATEWAY_BATCH_EVENTS_MAX": "a commit has at most 1,000 events",
    "GATEWAY_CLOCK_JUMP_MAX": "it is half of GATEWAY_WINDOW",
    # elsewhere
    "GATEWAY_QUOTA_REQUESTS": _KEY_FILE.format("requests"),
    "GATEWAY_QUOTA_EVENTS": _KEY_FILE.format("events"),
    "GATEWAY_QUOTA_BYTES": _KEY_FILE.format("bytes"),
    "GATEWAY_QUOTA_BURST": _KEY_FILE.format("burst"),
    "GATEWAY_QUOTA_INDEX_SHARE": _KEY_FILE.format("index_share"),
    "GATEWAY_CLOCK_ACCEPT": "start with `gateway serve --accept-clock` and today's date instead",
    "GATEWAY_SHARE_PORTS": "`gateway serve --workers` does it by itself",
    "GATEWAY_PEER_HOST": "set GATEWAY_PEER_LISTEN to host:port instead",
    "GATEWAY_PEER_PORT": "set GATEWAY_PEER_LISTEN to host:port instead",
    "GATEWAY_PROBE_HOST": "set GATEWAY_PROBE_LISTEN to host:port instead",
    "GATEWAY_PROBE_PORT": "set GATEWAY_PROBE_LISTEN to host:port instead",
    "GATEWAY_CONNECTIONS_PER_ADDRESS_MAX": "it is a sixteenth of GATEWAY_CONNECTIONS_MAX",
}
"""By variable: the end of the message "... is no setting any more: "."""
