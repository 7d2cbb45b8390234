"""What a pipeline must not share with any other: its checkpoint and its targets. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, Literal, NamedTuple, TypeVar

from lakemirror.api import PipelineSpec
from lakemirror.api.jdbc import place_of
from lakemirror.api.object_stores import one_spelling, store_of
from lakemirror.api.tables import Target


class Claim(NamedTuple):
    """What is claimed, where it is, and in which of several stores or databases of that name."""

    what: Literal["checkpoint", "target"]
    where: str
    store: str = ""
    """An endpoint, a metastore or a namespace; empty if ``where`` means the same everywhere."""

    def __str__(self) -> str:
        return f"{self.what} {self.where}"

    @property
    def folder(self) -> str:
        """The folder that contains everything that is claimed, with its store; empty if it is no path."""
        if not _is_path(self.where):
            return ""
        fixed, hole, _ = self.where.partition("{")
        return f"{self.store}|{fixed.rpartition('/')[0] if hole else fixed}"

    @property
    def whole(self) -> bool:
        """Whether the folder belongs to this claim alone. Mirrors of a template stand side by side in it."""
        return self.folder != "" and "{" not in self.where


def claims(spec: PipelineSpec, namespace: str) -> frozenset[Claim]:
    """Return what the spec claims. Two pipelines whose claims meet would overwrite each other's data.

    Paths of local file systems, paths without a scheme, and hosts without a domain mean something different
    in each namespace. Only the data shows whether two different templates lead to the same table; in that
    case the driver refuses.
    """
    return frozenset(_claims(spec, namespace))


def meet(one: Claim, other: Claim) -> bool:
    """Return whether two claims cannot belong to different pipelines.

    They are the same, or one lies in a folder that the other has alone: maintenance and cleanup would take
    it for the other's own files.
    """
    if one == other:
        return True
    return (one.whole and _lies_in(other.folder, one.folder)) or (
        other.whole and _lies_in(one.folder, other.folder)
    )


def _lies_in(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(f"{outer.rstrip('/')}/")


def _claims(spec: PipelineSpec, namespace: str) -> Iterator[Claim]:
    yield Claim("checkpoint", *_place(spec.checkpoint, spec, namespace))
    if spec.unlisted == "mirror":
        yield _target(spec, spec.target, namespace)
    for table in spec.tables:
        if table.target is not None:
            yield _target(spec, table.target, namespace, table.source)
        elif spec.unlisted == "ignore":
            yield _target(spec, spec.target, namespace, table.source)


def _target(spec: PipelineSpec, target: Target, namespace: str, source: str = "") -> Claim:
    if target.table is not None:
        name = target.table if spec.target.jdbc is not None else _spelled(target.table)
        where, store = f"table {name}", _catalog(target.table, spec, namespace)
    else:
        where, store = _place(target.path or "", spec, namespace)
    return Claim("target", f"{where} of {source}" if "{" in where and source else where, store)


def _spelled(table: str) -> str:
    """Return the name of a table of Spark, which ignores case, and whose own catalog need not be named."""
    return table.lower().removeprefix("spark_catalog.")


def _is_path(where: str) -> bool:
    return not where.startswith("table ")


def _place(path: str, spec: PipelineSpec, namespace: str) -> tuple[str, str]:
    """Return a place that is spelled as all its other spellings are, and its store."""
    spelled = one_spelling(path)
    scheme, mark, rest = spelled.partition("://")
    if not mark:
        return spelled, f"namespace {namespace}"
    authority, slash, below = rest.partition("/")
    store = store_of(spelled)
    if store is None:  # hdfs and the like: the authority is a host
        server = host_of(authority, namespace).removesuffix(":8020")  # Hadoop's default
        return f"{scheme.lower()}://{server}{slash}{below}", ""
    if store.name == "azure":  # the authority contains the account, which is unique
        return f"{scheme}://{authority.lower()}{slash}{below}", ""
    return spelled, _endpoint(store.name, authority, spec.spark.conf, namespace)


def _endpoint(store: str, bucket: str, conf: Mapping[str, str], namespace: str) -> str:
    """Return the server that the settings name for a bucket; empty for the provider's own."""
    names = {
        "s3": (f"spark.hadoop.fs.s3a.bucket.{bucket}.endpoint", "spark.hadoop.fs.s3a.endpoint"),
        "gcs": ("spark.hadoop.fs.gs.storage.root.url",),
    }.get(store, ())
    named = next((conf[name].strip() for name in names if conf.get(name, "").strip()), "")
    secure = not named.lower().startswith("http://")
    server = host_of(_SCHEME.sub("", named).partition("/")[0], namespace)
    return "" if _PROVIDERS.search(server) else server.removesuffix(":443" if secure else ":80")


_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_PROVIDERS = re.compile(r"(^|\.)(amazonaws\.com|googleapis\.com)(:443)?$")
"""Servers of the providers themselves: a bucket's name means the same at each of them."""


def _catalog(table: str, spec: PipelineSpec, namespace: str) -> str:
    """Return the database or metastore in which a table's name has its meaning; empty if none is named."""
    if spec.target.jdbc is not None:
        return database(spec.target.jdbc.url, namespace)
    conf, parts = spec.spark.conf, table.split(".")
    catalog = parts[0] if len(parts) == 3 else conf.get("spark.sql.defaultCatalog", "spark_catalog")
    names = [f"spark.sql.catalog.{catalog}.{each}" for each in ("uri", "url", "warehouse")]
    if f"spark.sql.catalog.{catalog}" not in conf or catalog == "spark_catalog":
        names += [
            f"spark.{prefix}hive.metastore.uris" for prefix in ("hadoop.", "sql.catalog.spark_catalog.", "")
        ]
        names.append("spark.hive.metastore.uris")
    named = next((conf[name].strip() for name in names if conf.get(name, "").strip()), "")
    servers = (_SCHEME.sub("", each.strip()) for each in named.split(","))
    return ",".join(sorted(_server(each, namespace) for each in servers if each))


def _server(address: str, namespace: str) -> str:
    host, slash, path = address.partition("/")
    return f"{host_of(host, namespace)}{slash}{path.rstrip('/')}"


_DEFAULT_PORTS = {"postgresql": "5432", "mysql": "3306", "mariadb": "3306"}


def database(url: str, namespace: str) -> str:
    """Return the database of a JDBC URL, without options of the connection, with its hosts in full."""
    found = _JDBC.fullmatch(place_of(url))
    if found is None:
        return place_of(url)
    product, hosts, rest = found["product"], found["hosts"], found["rest"]
    if product == "mysql":  # each of the two drivers connects to servers of both
        product = "mariadb"
    port = _DEFAULT_PORTS.get(product, "")
    whole = (each if _PORT.search(each) else f"{each}:{port}" for each in hosts.split(","))
    return f"jdbc:{product}://{','.join(host_of(each, namespace) for each in whole)}{rest}"


_JDBC = re.compile(r"jdbc:(?P<product>\w+)(:\w+)*://(?P<hosts>[^/?()]+)(?P<rest>.*)")
_PORT = re.compile(r":\d+$")


def host_of(address: str, namespace: str) -> str:
    """Return a host, perhaps with a port, as a pod of any namespace would have to call it.

    https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/: a name without dots is a Service
    of the pod's own namespace; ``a.b``, ``a.b.svc`` and ``a.b.svc.cluster.local`` are one.
    """
    found = _HOST.fullmatch(address.lower())
    if found is None:
        return address.lower()
    name = found["name"].rstrip(".").removesuffix(".cluster.local").removesuffix(".svc")
    local = "." not in name and name != ""
    return f"{name}.{namespace}{found['port']}" if local else f"{name}{found['port']}"


_HOST = re.compile(r"(?P<name>[a-z0-9._-]*[a-z_-][a-z0-9._-]*)(?P<port>(:\d+)?)")
"""A name, but no IP address."""

Name = TypeVar("Name")


class Claimants(Generic[Name]):
    """Who wants a place, and who has it. Nobody gets what another has; ``changed`` is told who is concerned.

    What a claimant has, it keeps until it lets it go, however old others are.
    """

    def __init__(self, changed: Callable[[Name], None]) -> None:
        self._changed = changed
        self._wanted: dict[Name, frozenset[Claim]] = {}
        self._held: dict[Name, frozenset[Claim]] = {}
        self._same: dict[Claim, set[Name]] = defaultdict(set)
        self._whole: dict[str, dict[Name, int]] = defaultdict(lambda: defaultdict(int))
        """The folders that claimants have, or want, alone."""
        self._below: dict[str, dict[Name, int]] = defaultdict(lambda: defaultdict(int))
        """Each folder that contains something claimed, at any depth, with the claimants."""
        self.changes = 0
        """How often anything changed."""

    def wanted(self, name: Name) -> frozenset[Claim]:
        """Return what is wanted, which includes what is held."""
        return self._wanted.get(name, frozenset())

    def held(self, name: Name) -> frozenset[Claim]:
        """Return what is held."""
        return self._held.get(name, frozenset())

    def want(self, name: Name, wanted: frozenset[Claim]) -> None:
        """Let ``name`` want this, and nothing else. It lets go what it has and no longer wants."""
        before = self.wanted(name)
        self._hold(name, self.held(name) & wanted)
        if wanted == before:
            return
        for claim in before - wanted:
            self._enter(claim, name, -1)
        for claim in wanted - before:
            self._enter(claim, name, 1)
        self._wanted[name] = wanted
        if not wanted:
            del self._wanted[name]
        self.changes += 1
        self._tell(name, wanted ^ before)

    def take(self, name: Name, claimed: Iterable[Claim]) -> None:
        """Let ``name`` have of its wanted claims these, and only these, as far as nobody else has them."""
        asked = frozenset(claimed) & self.wanted(name)
        kept = self.held(name) & asked
        free = {claim for claim in asked - kept if not any(self._holders(claim, name))}
        self._hold(name, kept | free)

    def rivals(self, name: Name) -> Iterator[tuple[Name, Claim, bool]]:
        """Yield who else wants or has what ``name`` wants and does not have.

        That is: who, which claim of ``name``, and whether the other one has it.
        """
        for claim in sorted(self.wanted(name) - self.held(name)):
            for other in self._concerned(claim) - {name}:
                for theirs in self.wanted(other):
                    if meet(claim, theirs):
                        yield other, claim, theirs in self.held(other)

    def _holders(self, claim: Claim, but: Name) -> Iterator[Name]:
        for other in self._concerned(claim) - {but}:
            if any(meet(claim, theirs) for theirs in self.held(other)):
                yield other

    def _hold(self, name: Name, claims: frozenset[Claim]) -> None:
        before = self.held(name)
        if claims == before:
            return
        self._held[name] = claims
        if not claims:
            del self._held[name]
        self.changes += 1
        self._tell(name, claims ^ before)

    def _tell(self, name: Name, claims: Iterable[Claim]) -> None:
        for other in {each for claim in claims for each in self._concerned(claim)} - {name}:
            self._changed(other)

    def _concerned(self, claim: Claim) -> set[Name]:
        """Return who may want something that meets ``claim``."""
        found = set(self._same.get(claim, ()))
        for folder in _above(claim.folder):
            found |= self._whole.get(folder, {}).keys()
        if claim.whole:
            found |= self._below.get(claim.folder, {}).keys()
        return found

    def _enter(self, claim: Claim, name: Name, number: int) -> None:
        if number > 0:
            self._same[claim].add(name)
        else:
            self._same[claim].discard(name)
            if not self._same[claim]:
                del self._same[claim]
        if claim.whole:
            _count(self._whole, claim.folder, name, number)
        for folder in _above(claim.folder):
            _count(self._below, folder, name, number)


def _above(folder: str) -> Iterator[str]:
    """Yield a folder and all that contain it."""
    while folder:
        yield folder
        above = folder.rpartition("/")[0]
        folder = "" if above.endswith(("|", ":", "/")) else above


def _count(counts: dict[str, dict[Name, int]], folder: str, name: Name, number: int) -> None:
    counts[folder][name] += number
    if not counts[folder][name]:
        del counts[folder][name]
    if not counts[folder]:
        del counts[folder]
