"""Makes a load: initial tables and a stream of changes to them, as files of Kafka records.

The records are Debezium's events for PostgreSQL with replica identity DEFAULT: updates carry no before image,
and a delete is followed by a tombstone. The lsn grows strictly, transactions have several changes, and topics
have three partitions. All tables share one sequence of keys: table n has those with remainder n when divided
by the number of tables.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from benchmarks import records, rows
from benchmarks.columns import FEWEST
from benchmarks.records import PARTITIONS, Change
from benchmarks.rows import Row

ROWS_A_FILE = 100_000
FILES_A_BATCH = 10
"""Files of the snapshot per batch: a million rows."""
_NEWEST = 0.05
_HOT = 0.001
_TRIES = 50


@dataclass(frozen=True)
class Load:
    """The sizes of a load. Shares are of a batch's events.

    `moves` are changes of the keys of rows, in a load of one table. Late events come up to 3 batches later
    than they should. `bad` is how many records follow an event that nobody can read. `hot` is the share of
    updates that go to one key in a thousand, `gaps` that of updates without the owner, which the source has
    not sent because it is as it was. The first `recent` batches change only the newest twentieth of the keys.
    `filter` is an SQL condition that the rows of all tables have to meet, and with `soft` a mirror keeps
    rows that are deleted.
    """

    rows: int = 1_000_000
    batch: int = 10_000
    batches: int = 18
    tables: int = 1
    columns: int = len(FEWEST)
    schemas: bool = False
    inserts: float = 0.25
    deletes: float = 0.10
    reinserts: float = 0.05
    moves: float = 0.0
    late: float = 0.0
    repeated: float = 0.0
    bad: float = 0.0
    gaps: float = 0.0
    hot: float = 0.0
    recent: int = 0
    filter: str | None = None
    soft: bool = False
    seed: int = 1

    @property
    def is_odd(self) -> bool:
        """Whether it is more than the newest event of each key, by its time of arrival."""
        return bool(self.late or self.gaps or self.bad)

    @property
    def names(self) -> list[str]:
        """The names of the tables."""
        return ["accounts"] if self.tables == 1 else [f"accounts_{n:03d}" for n in range(self.tables)]

    def filter_of(self, number: int) -> str | None:
        """Return the filter of a table: each has another text, but leaves the same rows."""
        return None if self.filter is None else f"({self.filter}) AND id > {-1 - number}"


@dataclass
class Files:
    """The files of a load: the snapshot, one file per batch, and the source's final rows (Parquet)."""

    snapshot: list[Path] = field(default_factory=list)
    batches: list[Path] = field(default_factory=list)
    truth: Path = Path()


def make(load: Load, folder: Path, told: int | None = None) -> Files:
    """Write the load to `folder`.

    With `told`, the snapshot has only that many of the initial rows, and the truth has only the changed rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files, end = Files(truth=folder / "truth.parquet"), load.rows if told is None else told
    for number, start in enumerate(range(0, end, ROWS_A_FILE)):
        files.snapshot.append(folder / f"snapshot-{number:05d}.jsonl")
        _write_snapshot(files.snapshot[-1], load, range(start, min(start + ROWS_A_FILE, end)))
    source = _Source(load)
    for number in range(load.batches):
        files.batches.append(folder / f"batch-{number:05d}.jsonl")
        with files.batches[-1].open("w", encoding="utf-8") as out:
            out.writelines(source.batch(number))
    _write_truth(files.truth, source, load.rows if told is None else 0)
    return files


# The snapshot: Polars writes it from the line that Python makes of a row of placeholders


def _write_snapshot(path: Path, load: Load, keys: range) -> None:
    number = pl.int_range(keys.start, keys.stop, eager=True).alias("id").to_frame()
    parts = [
        rows.firsts(number.filter(pl.col("id") % load.tables == n)).select(
            "id", pl.concat_str(_pieces(load, table)).alias("line")
        )
        for n, table in enumerate(load.names)
    ]
    lines = pl.concat(parts).sort("id").select("line")
    lines.write_csv(path, include_header=False, quote_style="never")


def _pieces(load: Load, table: str) -> list[pl.Expr]:
    """Return a snapshot record's text in pieces: literal ones, and ones from a row's columns."""
    tiers = {n: f'\\"{name}\\"' if name else "null" for n, name in enumerate(rows.TIERS)}
    tier = pl.col("tier").replace_strict(tiers, return_dtype=pl.String)
    count = pl.col("id") // load.tables
    values = {"id": pl.col("id"), "partition": count % PARTITIONS, "offset": count // PARTITIONS}
    values |= {"owner": pl.col("owner"), "balance": pl.col("balance"), "tier": tier}
    values |= {f"plus{n}": pl.col("balance") + n for n in range(load.columns - len(FEWEST))}
    pieces = re.split(r"@(\w+)@", _template(load, table).rstrip("\n"))
    return [values[piece] if n % 2 else pl.lit(piece) for n, piece in enumerate(pieces)]


def _template(load: Load, table: str) -> str:
    values = ['"owner @owner@ ż"', "@balance@", "@tier@", f'"{records.iso(rows.START)}"']
    more = range(load.columns - len(FEWEST))
    values += [f'"note @plus{n}@"' if n % 2 else f"@plus{n}@" for n in more]
    change = Change(table, "r", _FIRST_LSN, 700, rows.START, f'[null,"{_FIRST_LSN}"]', snapshot=True)
    value = records.value(change, "null", records.image("@id@", values), None)
    key = records.key_text(table, "@id@", load.schemas)
    return records.line(table, ("@partition@", "@offset@"), rows.START, key, value)


_FIRST_LSN = 24_000_000


class _Source:
    """Simulates the database and its connector."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.next = load.rows
        self.changed: dict[int, Row] = {}
        self.gone: set[int] = set()
        self._gone: list[int] = []
        self._names = load.names
        self._rnd = random.Random(load.seed)
        self._offsets: dict[tuple[str, int], int] = {}
        self._held: list[tuple[int, str]] = []
        self._number = 0
        self._lsn = self._commit = _FIRST_LSN
        self._tx, self._left, self._us = 700, 0, rows.START

    def batch(self, number: int) -> Iterator[str]:
        """Yield one batch: late records of earlier ones first, then its own, some of which are held back."""
        self._number = number
        load, last = self.load, number + 1 == self.load.batches
        yield from [line for due, line in self._held if due <= number or last]
        self._held = [(due, line) for due, line in self._held if due > number and not last]
        for _ in range(load.batch):
            for line in self._change():
                if load.late and not last and self._rnd.random() < load.late:
                    self._held.append((number + self._rnd.randint(1, 3), line))
                else:
                    yield line
                if load.repeated and self._rnd.random() < load.repeated:
                    yield line
            if load.bad and self._rnd.random() < load.bad:
                yield self._record(self.next, '{"before":null,"after":{"id":')

    def _change(self) -> Iterator[str]:
        load, x = self.load, self._rnd.random()
        if load.inserts <= x < load.inserts + load.reinserts and self._gone:
            yield self._created(self._again())
            return
        kept = load.inserts + load.reinserts + load.deletes
        deletes = load.inserts + load.reinserts <= x < kept
        moves = kept <= x < kept + load.moves
        key = None if x < load.inserts else self._pick(hot=not deletes)
        if key is None:
            self.next += 1
            yield self._created(self.next - 1)
        elif deletes:
            yield from self._deleted(key)
        elif moves:
            yield from self._moved(key)
        else:
            yield self._updated(key)

    def _pick(self, hot: bool) -> int | None:
        """Return a key that has a row; None if there are too few."""
        low, high = 0, self.next
        if self._number < self.load.recent:
            low = int(high * (1 - _NEWEST))
        elif hot and self._rnd.random() < self.load.hot:
            high = max(1, int(self.load.rows * _HOT))
        for _ in range(_TRIES):
            key = self._rnd.randrange(low, high) if high > low else low
            if key not in self.gone and key < self.next:
                return key
        return None

    def _again(self) -> int:
        """Return a key whose row was deleted. It no longer counts as gone."""
        place = self._rnd.randrange(len(self._gone))
        self._gone[place], self._gone[-1] = self._gone[-1], self._gone[place]
        key = self._gone.pop()
        self.gone.remove(key)
        return key

    def _created(self, key: int) -> str:
        self.changed[key] = self._row()
        return self._event("c", key, "null", self._image(key))

    def _updated(self, key: int) -> str:
        owner, *rest = self._row()
        before = self.changed.get(key) or rows.first(key)
        lacks = bool(self.load.gaps) and self._rnd.random() < self.load.gaps
        self.changed[key] = (before[0] if lacks else owner, *rest)
        return self._event("u", key, "null", self._image(key, lacks=lacks))

    def _moved(self, key: int) -> Iterator[str]:
        """The row of a key gets a new one: a delete and a create at one position."""
        new, self.next = self.next, self.next + 1
        names = [records.key_text(self._table(each), each, self.load.schemas) for each in (new, key)]
        yield from self._deleted(key, [("__debezium.newkey", names[0])])
        self.changed[new] = self._row()
        headers = [("__debezium.oldkey", names[1])]
        yield self._event("c", new, "null", self._image(new), headers, advances=False)

    def _deleted(self, key: int, headers: Sequence[tuple[str, str]] = ()) -> Iterator[str]:
        empty = ['""', "0", "null", '"1970-01-01T00:00:00Z"']
        before = records.image(key, empty + ["null"] * (self.load.columns - len(FEWEST)))
        self.changed.pop(key, None)
        self.gone.add(key)
        self._gone.append(key)
        yield self._event("d", key, before, "null", headers)
        yield self._record(key, None)

    def _table(self, key: int) -> str:
        return self._names[key % self.load.tables]

    def _row(self) -> Row:
        rnd = self._rnd
        return rnd.randrange(10**6), rnd.randrange(-(10**9), 10**12), rnd.randrange(3), self._us

    def _image(self, key: int, *, lacks: bool = False) -> str:
        values = rows.as_json(self.changed[key], self.load.columns)
        return records.image(key, [records.NOT_SENT, *values[1:]] if lacks else values)

    def _event(
        self,
        op: str,
        key: int,
        before: str,
        after: str,
        headers: Sequence[tuple[str, str]] = (),
        *,
        advances: bool = True,
    ) -> str:
        if advances:
            self._advance()
        sequence = f'["{self._commit}","{self._lsn}"]'
        change = Change(self._table(key), op, self._lsn, self._tx, self._us, sequence)
        columns = self.load.columns if self.load.schemas else None
        return self._record(key, records.value(change, before, after, columns), headers)

    def _advance(self) -> None:
        """Go on to the position of the next change."""
        if self._left == 0:
            self._commit, self._tx = self._lsn, self._tx + 1
            self._left = self._rnd.choice((1, 1, 1, 2, 5, 20))
            self._us += self._rnd.choice((0, 40, 300, 2000))
        self._left -= 1
        self._lsn += self._rnd.randrange(64, 400, 8)

    def _record(self, key: int, value: str | None, headers: Sequence[tuple[str, str]] = ()) -> str:
        table, partition = self._table(key), key // self.load.tables % PARTITIONS
        begin = self.load.rows // self.load.tables // PARTITIONS + 1
        offset = self._offsets.get((table, partition), begin)
        self._offsets[table, partition] = offset + 1
        text = records.key_text(table, key, self.load.schemas)
        return records.line(table, (partition, offset), self._us, text, value, headers)


def _write_truth(path: Path, source: _Source, first: int) -> None:
    """Write the rows of all tables: the `first` initial ones and all that were changed since."""
    touched = pl.Series("id", [*source.changed, *source.gone], dtype=pl.Int64).to_frame()
    keys = pl.int_range(0, first, eager=True).alias("id").to_frame()
    parts = [rows.firsts(keys.join(touched, on="id", how="anti"))]
    if source.changed:
        names = ("id", "owner", "balance", "tier", "at")
        changed = [(key, *row) for key, row in source.changed.items()]
        parts.append(pl.DataFrame(changed, schema=dict.fromkeys(names, pl.Int64), orient="row"))
    rows.as_table(pl.concat(parts), source.load.columns).write_parquet(path)
