"""The names of requests in locust's statistics; separate, since importing locust patches sockets."""

NEW, AGAIN, RETRY, REFUSED, SESSION = "new", "again", "retry", "refused", "session"
STATE = "state of a session"

HOSTILE = "hostile"
"""Names of hostile requests begin so: they count for no limit of latency."""

LOCUST, LATE, UNSENT = "locust", "late", "not sent"
"""Kind and names of what is counted about the load generator itself."""
