"""The jars that pip's pyspark lacks: resolved once with Maven, then read from a folder.

``python -m lakemirror.driver.runtime.jars`` resolves them ahead of time and prints the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lakemirror.driver.errors import LakemirrorError

POM = Path(__file__).with_name("jars.xml")
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_IN_SPARK = ("org.apache.hadoop", "org.scala-lang", "org.slf4j", "org.apache.logging.log4j")
_XMLNS = {"m": "http://maven.apache.org/POM/4.0.0"}


class JarsUnavailable(LakemirrorError):
    """The jars are not on this machine and could not be downloaded."""


@dataclass(frozen=True)
class Jar:
    """One Maven artifact."""

    group: str
    artifact: str
    version: str

    @property
    def file(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


def declared() -> list[Jar]:
    """The jars that ``jars.xml`` names."""

    def text(dependency: ElementTree.Element, name: str) -> str:
        return dependency.findtext(f"m:{name}", default="", namespaces=_XMLNS)

    found = ElementTree.parse(POM).findall("m:dependencies/m:dependency", _XMLNS)
    return [Jar(text(d, "groupId"), text(d, "artifactId"), text(d, "version")) for d in found]


def folder() -> Path:
    """Where the jars are kept: ``$LAKEMIRROR_JARS``, or a folder of the user's cache named after the POM."""
    named = os.environ.get("LAKEMIRROR_JARS")
    if named:
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "lakemirror" / "jars" / hashlib.sha256(POM.read_bytes()).hexdigest()[:16]


def spark_conf() -> dict[str, str]:
    """Spark settings that bring the jars onto the class path.

    Empty where Spark's own folder holds them (a container image). Without Maven, Spark downloads
    the same jars itself at start. Raises JarsUnavailable when Maven fails.
    """
    if _complete(_spark_jars()):
        return {}
    if _complete(folder()) or shutil.which("mvn"):
        return {"spark.jars": ",".join(str(path) for path in ensure())}
    return {
        "spark.jars.packages": ",".join(jar.coordinates for jar in declared()),
        # The heavy part of what they depend on; Spark has it already.
        "spark.jars.excludes": ",".join(f"{group}:*" for group in _IN_SPARK),
    }


def ensure() -> list[Path]:
    """The jars as files, downloaded unless they are there already; safe with several processes at once."""
    target = folder()
    if not _complete(target):
        target.mkdir(parents=True, exist_ok=True)
        with open(target / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits here and finds the work done
            if not _complete(target):
                _resolve(target)
    return [target / jar.file for jar in declared()]


def _resolve(target: Path) -> None:
    """Let Maven copy the jars beside ``target``, then move each in: a reader sees whole files only."""
    mvn = shutil.which("mvn")
    if mvn is None:
        raise JarsUnavailable(
            "Maven is not installed: apt-get install maven (or set LAKEMIRROR_JARS to a folder with the jars)"
        )
    with tempfile.TemporaryDirectory(dir=target, prefix=".partial-") as partial:
        command = [
            mvn,
            "-B",
            "-q",
            "-f",
            str(POM),
            _COPY,
            "-DincludeScope=runtime",
            f"-DoutputDirectory={partial}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=partial, check=False)
        if done.returncode != 0 or not _complete(Path(partial)):
            reason = "\n".join((done.stdout + done.stderr).strip().splitlines()[:5])
            raise JarsUnavailable(f"Maven could not download the jars of {POM}:\n{reason}")
        for jar in declared():
            os.replace(Path(partial) / jar.file, target / jar.file)


def _complete(path: Path) -> bool:
    return all((path / jar.file).is_file() for jar in declared())


def _spark_jars() -> Path:
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home) / "jars"
    pyspark = find_spec("pyspark")
    return Path(pyspark.origin).parent / "jars" if pyspark and pyspark.origin else Path("jars")


if __name__ == "__main__":
    try:
        ensure()
    except JarsUnavailable as error:
        sys.exit(str(error))
    print(folder())
