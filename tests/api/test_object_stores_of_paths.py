"""Which file systems tables can be on."""

from __future__ import annotations

from lakemirror.api.object_stores import unknown_scheme


def test_a_path_that_looks_like_a_host_has_no_scheme() -> None:
    assert unknown_scheme("//[") is None
    assert unknown_scheme("/lake") is None
    assert "ftp://" in (unknown_scheme("ftp://lake") or "")
