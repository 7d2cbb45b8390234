"""The driver's refusal of what is not supported (`lakemirror.api.supported`)."""

from __future__ import annotations

from lakemirror.api import CdcPipeline
from lakemirror.api.errors import line
from lakemirror.api.supported import not_supported
from lakemirror.driver.errors import LakemirrorError


class NotSupportedYet(LakemirrorError):
    """The manifest asks for what this version does not do, or for what would have no effect."""


def require_supported(pipeline: CdcPipeline) -> None:
    """Raises NotSupportedYet, which names every field that is refused."""
    found = not_supported(pipeline.spec)
    if found:
        raise NotSupportedYet("; ".join(line(path, message) for path, message in found))
