"""The settings of a worker of a group."""

from pathlib import Path

from pydantic import Field

from app.settings.networks import ListenAddress
from app.settings.section import Section


class GroupSettings(Section):
    """Group: how other workers reach this one, if it is one of several."""

    peer_listen: ListenAddress | None = Field(
        None,
        description="Address and port for other workers, as `host:port`; port 0 takes a free one. Set, this "
        "gateway is one of a group that shares the partitions of a Kafka topic; empty, it serves all of them "
        "alone.",
    )
    peer_address: str = Field(
        "",
        pattern=r"^(\S+:\d{1,5})?$",
        description="`host:port` at which other workers reach this one, where that is not "
        "`GATEWAY_PEER_LISTEN`: behind a proxy or an address translation.",
    )
    peer_tls_cert_file: Path | None = Field(
        None,
        description="PEM certificate of this worker for the host at which others reach it. With it, workers "
        "speak TLS, and each checks the other's certificate.",
    )
    peer_tls_key_file: Path | None = Field(None, description="PEM file of that certificate's private key.")
    peer_tls_ca_file: Path | None = Field(
        None, description="PEM file of the authorities that sign the certificates of all workers."
    )
    worker_id: str = Field(
        "worker",
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="Name of this worker: unique in its group, and the same after a restart.",
    )
    zone: str = Field(
        "",
        max_length=100,
        description="Zone of this worker: a standby is in another zone than its owner, if there is one.",
    )
    standby: bool = Field(
        True,
        description="Whether this worker follows partitions of others, to take over within seconds; costs "
        "disk space for their indexes.",
    )
