"""Provides the jars that pip's pyspark lacks: resolved once with Maven, then read from a folder.

Beside each POM, a file with the ending ``sha256`` names all of its jars with their hashes, as ``sha256sum``
writes them. What is not in it, or is another file, does not get into the folder, nor into an image.

``python -m lakemirror.driver.runtime.jars`` resolves them ahead of time and prints the folder. The jars of an
object store (a POM for each in ``object_stores/``) are added if LAKEMIRROR_OBJECT_STORES names the store.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from lakemirror.api.object_stores import STORES, ObjectStore
from lakemirror.driver.errors import LakemirrorError

OBJECT_STORES = "LAKEMIRROR_OBJECT_STORES"
"""The environment variable that names the object stores whose jars are wanted, like ``s3`` or ``s3,gcs``."""
POM = Path(__file__).with_name("jars.xml")
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_IN_SPARK = ("org.apache.hadoop", "org.scala-lang", "org.slf4j", "org.apache.logging.log4j")
_STORE_POMS = Path(__file__).with_name("object_stores")
_DONE = ".done"
"""A file that marks the folder of a store's jars as complete."""
_XMLNS = {"m": "http://maven.apache.org/POM/4.0.0"}


class JarsUnavailable(LakemirrorError):
    """The jars are not on this machine, could not be downloaded, or are not those that were named."""


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


def declared(pom: Path = POM) -> list[Jar]:
    """Return the jars that a POM names, by default ``jars.xml``."""

    def text(dependency: ElementTree.Element, name: str) -> str:
        return dependency.findtext(f"m:{name}", default="", namespaces=_XMLNS)

    found = ElementTree.parse(pom).findall("m:dependencies/m:dependency", _XMLNS)
    return [Jar(text(d, "groupId"), text(d, "artifactId"), text(d, "version")) for d in found]


def folder() -> Path:
    """Return the jars' folder: ``$LAKEMIRROR_JARS``, or one in the user's cache, named after the POM."""
    named = os.environ.get("LAKEMIRROR_JARS")
    return Path(named) if named else _cache() / _version(POM)


def wanted_stores() -> list[ObjectStore]:
    """Return the object stores that the environment names. Raises JarsUnavailable for an unknown name."""
    names = {store.name: store for store in STORES}
    wanted = os.environ.get(OBJECT_STORES, "").replace(",", " ").split()
    for word in wanted:
        if word not in names:
            raise JarsUnavailable(f"{OBJECT_STORES}: {word} is not an object store: give {', '.join(names)}")
    return [names[word] for word in dict.fromkeys(wanted)]


def spark_conf() -> dict[str, str]:
    """Return the Spark settings that put the jars on the class path.

    Empty if Spark's own folder contains the jars (in a container image). Without Maven, Spark downloads the
    same jars at startup, except for those of object stores. Raises JarsUnavailable if Maven fails.
    """
    files = [
        jar for store in wanted_stores() if not _has(_spark_jars(), store) for jar in ensure_store(store)
    ]
    packages: dict[str, str] = {}
    if not _complete(_spark_jars()):
        if _complete(folder()) or shutil.which("mvn"):
            files = ensure() + files
        else:
            packages = {
                "spark.jars.packages": ",".join(jar.coordinates for jar in declared()),
                # The largest of their dependencies, which Spark already has.
                "spark.jars.excludes": ",".join(f"{group}:*" for group in _IN_SPARK),
            }
    return packages | ({"spark.jars": ",".join(map(str, files))} if files else {})


def ensure() -> list[Path]:
    """Return the jars as files, downloaded if necessary. Safe with several processes at once."""
    target = folder()
    if not _complete(target):
        with _locked(target):
            if not _complete(target):
                _resolve(POM, target)
                if not _complete(target):
                    raise JarsUnavailable(f"Maven did not bring all jars of {POM}")
    return [target / jar.file for jar in declared()]


def ensure_store(store: ObjectStore) -> list[Path]:
    """Return the jars of an object store as files, like ``ensure`` for the others."""
    pom = store_pom(store)
    named = os.environ.get("LAKEMIRROR_JARS")
    target = Path(named, store.name) if named else _cache() / f"{store.name}-{_version(pom)}"
    if not (target / _DONE).exists():
        with _locked(target):
            if not (target / _DONE).exists():
                _resolve(pom, target)
                (target / _DONE).touch()
    return sorted(target.glob("*.jar"))


def store_pom(store: ObjectStore) -> Path:
    """Return the POM of an object store's jars. The first jar that it names contains the file system."""
    return _STORE_POMS / f"{store.name}.xml"


def hashes(pom: Path) -> dict[str, str]:
    """Return the SHA-256 of each jar of a POM, by the name of its file."""
    lines = pom.with_suffix(".sha256").read_text("utf-8").splitlines()
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}


def check(pom: Path, folder: Path) -> None:
    """Raise JarsUnavailable if a jar in ``folder`` is not the one that is named beside the POM."""
    named = hashes(pom)
    for jar in sorted(folder.glob("*.jar")):
        with jar.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if named.get(jar.name) != found:
            expected = named.get(jar.name, "no such jar")
            raise JarsUnavailable(
                f"{jar.name} has the SHA-256 {found}, and {pom.with_suffix('.sha256')} names {expected}: "
                "Maven took it from a repository that has another file"
            )


def has_hive() -> bool:
    """Return whether Spark has the client of a Hive metastore."""
    return any(_spark_jars().glob("spark-hive_*.jar"))


def _cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "lakemirror" / "jars"


def _version(pom: Path) -> str:
    return hashlib.sha256(pom.read_bytes()).hexdigest()[:16]


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Let only one process fill a folder. A second one waits, and then finds the work done."""
    target.mkdir(parents=True, exist_ok=True)
    with open(target / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _resolve(pom: Path, target: Path) -> None:
    """Let Maven copy the jars into a temporary folder, then move each jar into ``target``.

    Readers therefore see only whole files.
    """
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
            str(pom),
            _COPY,
            "-DincludeScope=runtime",
            f"-DoutputDirectory={partial}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=partial, check=False)
        if done.returncode != 0:
            reason = "\n".join((done.stdout + done.stderr).strip().splitlines()[:5])
            raise JarsUnavailable(f"Maven could not download the jars of {pom}:\n{reason}")
        check(pom, Path(partial))
        for jar in Path(partial).glob("*.jar"):
            os.replace(jar, target / jar.name)


def _complete(path: Path) -> bool:
    return all((path / jar.file).is_file() for jar in declared())


def _has(path: Path, store: ObjectStore) -> bool:
    """Return whether a folder contains the jar of a store's file system, in any version."""
    return any(path.glob(f"{declared(store_pom(store))[0].artifact}-*.jar"))


def _spark_jars() -> Path:
    home = os.environ.get("SPARK_HOME")
    if home:
        return Path(home) / "jars"
    pyspark = find_spec("pyspark")
    return Path(pyspark.origin).parent / "jars" if pyspark and pyspark.origin else Path("jars")


if __name__ == "__main__":
    try:
        ensure()
        for each in wanted_stores():
            ensure_store(each)
    except JarsUnavailable as error:
        sys.exit(str(error))
    print(folder())
