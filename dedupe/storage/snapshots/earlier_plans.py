"""
Deletes snapshots of a partition's indexes of earlier plans.

Who makes a snapshot serves the partition by its plan, so all have decided of that: whoever would still serve
by an earlier one is fenced first, and begins anew with the index of the later one. Nothing is read from a
snapshot of another plan. They are kept for KEPT_S all the same, beyond any round that is under way.
"""

import re

from dedupe.storage.index import IndexIdentity
from dedupe.storage.snapshots.bucket import Bucket
from dedupe.storage.snapshots.manifest import folder_of

KEPT_S = 86_400.0
_KINDS = ("manifests", "files", "disproved")  # in this order: no manifest names files that are gone
_NAME = re.compile(r"(\d+)(?:-(\d+))?")


async def delete_earlier_plans(bucket: Bucket, identity: IndexIdentity) -> None:
    """Delete what is older than KEPT_S in folders of earlier plans of a partition. Raises SnapshotError."""
    if not identity.plan:
        return
    of_topic = folder_of(identity).rpartition("/")[0]
    for name in await bucket.folders(of_topic):
        if not _is_earlier(name, identity):
            continue
        for kind in _KINDS:
            place = f"{of_topic}/{name}/{kind}/"
            old = [each.name for each in await bucket.names(place) if each.age_s > KEPT_S]
            await bucket.delete([f"{place}{each}" for each in old])


def _is_earlier(name: str, identity: IndexIdentity) -> bool:
    found = _NAME.fullmatch(name)
    return found is not None and int(found[1]) == identity.partition and int(found[2] or 0) < identity.plan
