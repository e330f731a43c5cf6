"""The settings of a worker that shares its log with others."""

from pathlib import Path

from pydantic import Field

from app.config.log_settings import LogSettings


class GroupSettings(LogSettings):
    """How this process is reached by other workers, if it is one of several."""

    peer_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="port for other workers; 0 takes a free one. Set, this gateway is one of a group that "
        "shares the partitions of a Kafka topic; empty, it serves all of them alone",
    )
    peer_host: str = Field(
        "127.0.0.1",
        description="name or address at which other workers reach this one, and where it listens for them",
    )
    peer_tls_cert_file: Path | None = Field(
        None,
        description="PEM certificate of this worker for the name or address in `GATEWAY_PEER_HOST`; "
        "with it, workers speak TLS, and each wants to see the other's",
    )
    peer_tls_key_file: Path | None = Field(None, description="its private key")
    peer_tls_ca_file: Path | None = Field(
        None, description="PEM certificates that all workers' are signed by"
    )
    peer_address: str = Field(
        "",
        pattern=r"^(\S+:\d{1,5})?$",
        description="host:port at which other workers reach this one, where it is not GATEWAY_PEER_HOST and "
        "GATEWAY_PEER_PORT: behind a proxy or an address translation",
    )
    worker_id: str = Field(
        "worker",
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="what this worker is called: no other one of the group has the name, and it keeps it "
        "when it is started again",
    )
    zone: str = Field(
        "",
        max_length=100,
        description="where it runs: a partition's standby is in another zone, if there is one",
    )
    standby: bool = Field(
        True,
        description="whether it follows partitions of other workers, to take over within seconds; costs an "
        "index of theirs on disk",
    )
    share_ports: bool = Field(
        False,
        description="whether several workers on one machine listen on the same ports; `gateway serve "
        "--workers` sets it",
    )
