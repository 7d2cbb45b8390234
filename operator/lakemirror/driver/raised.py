"""The base class of errors, apart from `lakemirror.driver.errors` because the rules need no Spark."""

from __future__ import annotations


class LakemirrorError(Exception):
    """Base class of all errors that Lakemirror raises deliberately."""
