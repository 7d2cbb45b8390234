"""Deletes executors that an earlier container of this pod has left behind.

Kubernetes deletes a driver's executors together with its pod. A container that is restarted in the same pod
finds those of its predecessor, under the names that its own executors will have.
"""

from __future__ import annotations

import logging
import time
from urllib.parse import quote

from lakemirror.pod.api import Api

_GRACE_SECONDS = 5
_WAIT_SECONDS = 60.0
_log = logging.getLogger(__name__)


def delete_leftovers(api: Api, namespace: str, pipeline: str, *, every: float = 0.5) -> int:
    """Delete the pipeline's executors and, once they are gone, return how many there were.

    Raises what urllib raises, and TimeoutError if they do not disappear.
    """
    selector = quote(f"lakemirror.io/pipeline={pipeline},app.kubernetes.io/component=executor")
    path = f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}"
    found = len(api.request("GET", path)["items"])
    if not found:
        return 0
    _log.info("deleting %d executor(s) that a former driver has left", found)
    api.request("DELETE", f"{path}&gracePeriodSeconds={_GRACE_SECONDS}")
    end = time.monotonic() + _WAIT_SECONDS
    while left := api.request("GET", path)["items"]:
        if time.monotonic() > end:
            names = ", ".join(pod["metadata"]["name"] for pod in left)
            raise TimeoutError(f"a former driver's executors are there after {_WAIT_SECONDS:.0f} s: {names}")
        time.sleep(every)
    return found
