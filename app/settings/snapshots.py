"""The settings of snapshots."""

from pydantic import Field

from app.settings.section import Section, variables
from app.settings.units import Seconds


class SnapshotSettings(Section, alias_generator=variables("SNAPSHOTS_")):
    """Snapshots: copies of the indexes in a bucket, from which a lost one is restored."""

    url: str | None = Field(
        None,
        pattern=r"^(s3|gs|az|azure|abfss?|file)://.+$",
        description="Where copies of the indexes are kept, as `s3://bucket/prefix`, `gs://`, `az://` or "
        "`file:///folder`; a lost index is restored from there in a minute, and not from the log in hours. "
        "Needs the extra `snapshots`; the cloud's own variables and roles give access.",
    )
    interval: Seconds = Field(
        600,
        ge=1,
        description="How often a partition's index is copied; five times as long with few new events.",
    )
