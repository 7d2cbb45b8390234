"""Servers that tests start: their jars, fetched once from a Maven repository into the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"


def jars(
    name: str, command: Callable[[Path], Sequence[str]], unpack: Callable[[Path], None] | None = None
) -> Path:
    """The folder ``name`` of the cache. Where it is not there, the arguments that ``command`` gives Maven
    fill a new folder, and ``unpack`` does the rest. Skips the test where that cannot be done.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = cache / "lakemirror" / "test-jars" / name
    if target.is_dir():
        return target
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"{name} needs {tool}, which is not installed")
    partial = target.with_name(f".partial-{uuid.uuid4().hex}")
    partial.mkdir(parents=True)
    arguments = ["mvn", "-B", "-q", *command(partial)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        shutil.rmtree(partial)
        pytest.skip(f"Maven could not fetch {name}: {(done.stdout + done.stderr).strip()[:300]}")
    if unpack is not None:
        unpack(partial)
    try:
        partial.rename(target)
    except OSError:  # another test process was first
        shutil.rmtree(partial)
    return target
