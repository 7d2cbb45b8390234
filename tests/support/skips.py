"""With LAKEMIRROR_NO_SKIPS set, a test fails where it would be skipped for lack of a program.

Without it, a run in which every test of monitoring, say, is skipped is as green as one in which they pass.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

MAY_BE_SKIPPED = {
    "LAKEMIRROR_SPARK_CRDS names no folder": "large files of other projects, which somebody has to choose",
    "LAKEMIRROR_PUBLISHED_CRDS names no folder": "as above",
    "KUBECONFIG names no cluster": "tests of a cluster have a workflow of their own",
    "MySQL is not installed": "its packages exclude MariaDB's, and Debian has none",
}
"""Parts of the reasons with which tests are skipped even then, and why they may be."""


def fails(reason: str) -> bool:
    """Return whether a test that is skipped for this reason fails instead."""
    return bool(os.environ.get("LAKEMIRROR_NO_SKIPS")) and not any(each in reason for each in MAY_BE_SKIPPED)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if fails(reason):
            report.outcome = "failed"
            report.longrepr = f"LAKEMIRROR_NO_SKIPS is set, and this test would be skipped: {reason}"
    return report
