"""What a source gets of a Secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.read.secrets import read_secret


def test_a_secret_is_read_from_its_directory(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("PEM")
    assert read_secret("tls", {"tls": tmp_path}) == {"ca.crt": "PEM"}
    with pytest.raises(LakemirrorError, match="--secret tls=DIR"):
        read_secret("tls", {})
    with pytest.raises(LakemirrorError, match="cannot be read"):
        read_secret("tls", {"tls": tmp_path / "nothing"})
