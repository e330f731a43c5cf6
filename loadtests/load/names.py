"""What requests are called in locust's statistics. Importing locust patches sockets, so these are apart."""

NEW, AGAIN, RETRY, REFUSED, SESSION = "new", "again", "retry", "refused", "session"
STATE = "state of a session"

HOSTILE = "hostile"
"""Names of hostile requests begin so: they count for no limit of latency."""

LOCUST, LATE, UNSENT = "locust", "late", "not sent"
"""Kind and names of what is counted about the load generator itself."""
