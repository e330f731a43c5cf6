"""The error of a login."""

from aiokafka.errors import KafkaError


class LoginError(KafkaError):
    """There is no login; its text says why in one sentence, without secrets. The next attempt may succeed."""

    retriable = True

    def __str__(self) -> str:
        return Exception.__str__(self)


class LoginRefusedError(LoginError):
    """The broker refuses the login: it can be reached, and says no."""
