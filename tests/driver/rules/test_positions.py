"""Positions: what each database says, and that bytes compare like the order of its commits."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.driver.rules.ordering_columns import can_order, sequence_of_values
from lakemirror.driver.rules.positions import (
    Epoch,
    Origin,
    Source,
    anchored_at,
    epoch_of,
    identity,
    is_by_time,
    is_snapshot,
    is_unanchored,
    log_of,
    misplaced,
    moved,
    own,
    sequence,
    server_of,
    source_micros,
    unplaced,
)

pytestmark = pytest.mark.guarantee(
    "The rules of a mirror need no Spark, and do not depend on the order in which changes, blocks or batches "
    "arrive"
)

HERE = Origin("shop.public.t", 0, 7)
POSTGRES = Source(connector="postgresql", name="shop", sequence='["24023128","24023184"]', lsn=24023184)


def parts(source: Source, *, snapshot: bool = False, by: str = "auto") -> tuple[int, ...]:
    seq = sequence(source, HERE, snapshot=snapshot, by=by)  # type: ignore[arg-type]
    assert len(seq) == 26
    return tuple(int.from_bytes(seq[a:b], "big") for a, b in ((0, 2), (2, 12), (12, 22), (22, 26)))


@pytest.mark.parametrize(
    ("source", "snapshot", "expected"),
    [
        (POSTGRES, False, (24023184, 24023184, 1)),
        (POSTGRES._replace(sequence='["30","20"]', lsn=20), False, (30, 20, 1)),  # overlaps an earlier commit
        (POSTGRES._replace(sequence='[null,"20"]', lsn=20), False, (20, 20, 1)),
        (POSTGRES, True, (24023184, 0, 0)),
        (POSTGRES._replace(sequence='["40","50"]', lsn=None, snapshot="incremental"), True, (50, 0, 1)),
        (POSTGRES._replace(sequence='[null,"50"]', lsn=None, snapshot="incremental"), True, (50, 0, 0)),
        (Source("mysql", file="mysql-bin.000012", pos=345, row=3), False, (12, 345, 1)),
        (Source("mariadb", file="mariadb-bin.000012", pos=345), True, (12, 345, 0)),
        (Source("mysql", file="bin.000001", pos=4, event_serial_no=8), False, (1, 4, 9)),  # Maxwell's xoffset
        (
            Source(
                "sqlserver",
                commit_lsn="00000025:00000d98:00a2",
                change_lsn="00000025:00000d98:0003",
                event_serial_no=2,
            ),
            False,
            (0x25_00000D98_00A2, 0x25_00000D98_0003, 3),
        ),
        (
            Source("sqlserver", commit_lsn="00000025:00000d98:00a2", change_lsn="NULL"),
            True,
            (0x25_00000D98_00A2, 0, 0),
        ),
        (
            Source(
                "db2",
                commit_lsn="00000000:000102b5:000000000007bf55",
                change_lsn="00000000:00000000:0000000006f4b31f",
            ),
            False,
            (0x102B5_0000_0007BF55, 0x06F4B31F, 1),
        ),
        (
            Source("db2", commit_lsn="00000000:0000150f:0000000000048fca"),
            True,
            (0x150F_0000_00048FCA, 0, 0),
        ),
        (
            Source("informix", commit_lsn="17179869184", change_lsn="17179869190"),
            False,
            (0x17179869184, 0x17179869190, 1),
        ),
        (Source("oracle", scn="70", commit_scn="90"), False, (90, 70, 1)),
        (Source("oracle", scn="95", commit_scn="90"), False, (95, 95, 1)),  # of an earlier transaction
        (Source("oracle", scn="70", commit_scn="null"), True, (70, 0, 0)),
        (Source("mongodb", ts_ms=1_700_000_000_123), False, (1_700_000_000_123_000, 8, 1)),
        (Source("mongodb", ts_us=-1, ts_ms=5), False, (5000, 8, 1)),
        (Source("mongodb"), False, (0, 8, 1)),
        (Source("mysql", ts_ms=1_700_000_000_123), False, (0, 0, 0)),  # has positions, but not here: nowhere
    ],
)
def test_each_database_has_its_positions(source: Source, snapshot: bool, expected: tuple[int, ...]) -> None:
    assert parts(source, snapshot=snapshot) == (0, *expected)


def test_the_long_positions_of_db2_compare_like_its_log() -> None:
    """They have 16 bytes, of which 10 may be other than zero (Debezium's Db2 connector, class Lsn)."""
    texts = [
        "00000000:00000000:0000000006f4b31f",
        "00000000:00000000:0000ffffffffffff",
        "00000000:00000001:0000000000000000",
        "00000000:000102b5:000000000007bf55",
        "00000000:ffffffff:0000000000000000",
    ]
    places = [sequence(Source("db2", commit_lsn=each), HERE, snapshot=False) for each in texts]
    assert places == sorted(set(places))


@pytest.mark.parametrize("text", ["00000001:00000000:0000000000000000", "00000000:00000000:0001000000000000"])
def test_a_position_of_db2_that_would_lose_digits_is_not_valid(text: str) -> None:
    assert misplaced(Source("db2", commit_lsn=text), HERE) == f"source.commit_lsn is not valid: {text}"


@given(data=st.data())
def test_a_row_of_oracle_follows_the_change_of_another_thread(data: st.DataObject) -> None:
    """Older versions of Debezium send the commit before it with all changes of a transaction but the last.
    Each redo thread of a cluster has commits of its own.
    """
    commits: dict[int, int] = {}
    scn, found = 1, []
    for _ in range(data.draw(st.integers(1, 6))):  # transactions that change one row, one after the other
        thread, size = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
        for at in range(size):
            scn += data.draw(st.integers(1, 9))
            if at == size - 1:
                commits[thread] = scn + data.draw(st.integers(0, 9))
            last = commits.get(thread)
            source = Source("oracle", scn=str(scn), commit_scn=None if last is None else str(last))
            found.append(sequence(source, HERE, snapshot=False))
        scn = commits[thread]
    assert found == sorted(found)


def test_the_manifest_may_choose_what_orders_changes() -> None:
    both = POSTGRES._replace(ts_us=99)
    assert parts(both, by="timestamp") == (0, 99, 8, 1)
    assert parts(both, by="offset") == (0, 0, 8, 1)
    assert parts(both, by="lsn") == (0, 24023184, 24023184, 1)
    assert parts(both, by="binlog") == (0, 0, 0, 0)
    server = Source("sqlserver", commit_lsn="00000000:00000000:0005", change_lsn="00000000:00000000:0003")
    assert parts(server, by="lsn") == (0, 5, 3, 1)
    assert parts(Source("mysql", file="binlog.000007", pos=4), by="binlog") == (0, 7, 4, 1)
    assert parts(Source("mysql", file="binlog.000007", pos=4), by="lsn") == (0, 0, 0, 0)
    given = Source(sequence="00" * 26)
    assert sequence(given, HERE, snapshot=False, by="given") == bytes(26)
    listed = Source("delta", sequence="0A0B" * 13)
    assert sequence(listed, HERE, snapshot=False, by="offset") == b"\x0a\x0b" * 13


def test_a_declared_epoch_is_above_all_positions_before_it() -> None:
    epochs = [Epoch(1, {("t", 0): 10}), Epoch(2, {("t", 0): 20, ("t", 1): 5})]

    def epoch(partition: int, offset: int) -> int:
        seq = sequence(POSTGRES, Origin("t", partition, offset), snapshot=False, epochs=epochs)
        return int.from_bytes(seq[:2], "big")

    assert [epoch(0, 9), epoch(0, 10), epoch(0, 20), epoch(1, 4), epoch(1, 5)] == [0, 1, 2, 0, 2]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=200)
def test_transactions_of_postgres_that_overlap_are_in_the_order_of_their_commits(
    sizes: list[int], turns: random.Random
) -> None:
    written = [tx for tx, size in enumerate(sizes) for _ in range(size)]
    turns.shuffle(written)
    lsns = [[10 * n for n, tx in enumerate(written, 1) if tx == mine] for mine in range(len(sizes))]
    begun, last = 1000 * len(written), None
    sent = []
    for tx, changes in enumerate(lsns):
        for lsn in changes:
            pair = f'[{"null" if last is None else chr(34) + str(last) + chr(34)},"{lsn}"]'
            sent.append(sequence(POSTGRES._replace(sequence=pair, lsn=lsn), HERE, snapshot=False))
        last = begun + tx
    assert sent == sorted(sent)


def test_a_snapshot_row_yields_to_a_change_at_its_position() -> None:
    read = sequence(POSTGRES, HERE, snapshot=True)
    change = sequence(POSTGRES, HERE, snapshot=False)
    assert read < change
    assert is_snapshot(read)
    assert not is_snapshot(change)


def test_an_unanchored_change_takes_its_place_after_the_row_of_the_snapshot() -> None:
    opened = POSTGRES._replace(sequence='[null,"70"]', lsn=70)
    read = sequence(POSTGRES._replace(sequence='[null,"90"]', lsn=90), HERE, snapshot=True)
    change = sequence(opened, HERE, snapshot=False)
    assert is_unanchored(opened, snapshot=False, by="auto")
    assert not is_unanchored(opened, snapshot=False, by="timestamp")
    assert not is_unanchored(POSTGRES, snapshot=False, by="auto")
    assert change < read < anchored_at(change, read)


@pytest.mark.parametrize(
    ("source", "origin", "by", "objection"),
    [
        (POSTGRES, HERE, "auto", None),
        (POSTGRES._replace(lsn=-1), HERE, "auto", "source.lsn is not valid: -1"),
        (POSTGRES._replace(lsn=10**18), HERE, "auto", f"source.lsn is not valid: {10**18}"),
        (POSTGRES._replace(sequence="[1,2]"), HERE, "auto", "source.sequence is not valid: [1,2]"),
        (POSTGRES._replace(sequence=""), HERE, "auto", "source.sequence is not valid: "),
        (Source("mysql", file="bin.x"), HERE, "auto", "source.file is not valid: bin.x"),
        (Source("oracle", scn="1e3"), HERE, "auto", "source.scn is not valid: 1e3"),
        (
            Source("sqlserver", change_lsn="00:00:00"),
            HERE,
            "auto",
            "source.change_lsn is not valid: 00:00:00",
        ),
        (Source("mongodb", ts_us=-5), HERE, "auto", "source.ts_us is not valid: -5"),
        (Source("mysql", ts_us=-5), HERE, "auto", None),
        (POSTGRES._replace(ts_us=-5), HERE, "timestamp", "source.ts_us is not valid: -5"),
        (POSTGRES, Origin("t", -1, 0), "offset", "partition is not valid: -1"),
        (POSTGRES, Origin("t", 0, 2**63 - 1), "offset", f"offset is not valid: {2**63 - 1}"),
        (POSTGRES, HERE, "binlog", "ordering.by is binlog, but the record has no source.file"),
        (
            Source("mysql"),
            HERE,
            "lsn",
            "ordering.by is lsn, but the record has no source.lsn or source.commit_lsn",
        ),
        (Source(), HERE, "timestamp", "ordering.by is timestamp, but the record has no source.ts_ms"),
    ],
)
def test_what_cannot_be_a_position_is_named(
    source: Source, origin: Origin, by: str, objection: str | None
) -> None:
    assert misplaced(source, origin, by=by) == objection  # type: ignore[arg-type]


def test_a_bootstrap_may_lack_its_position_and_names_are_those_of_the_record() -> None:
    assert misplaced(Source(), HERE, by="binlog", anywhere=True) is None
    objection = misplaced(Source(ts_ms=-1), HERE, by="timestamp", called={"ts_ms": "ts"})
    assert objection == "ts is not valid: -1"


def test_something_has_to_order_a_change() -> None:
    assert unplaced(Source(), Origin(), "auto") is not None
    assert unplaced(Source(), HERE, "auto") is None
    assert unplaced(Source(ts_ms=5), Origin(), "auto") is None
    assert unplaced(Source(ts_ms=5), Origin(), "offset") is not None
    assert unplaced(Source("mysql"), Origin(), "auto") is None


def test_only_sources_without_positions_are_ordered_by_time() -> None:
    assert is_by_time(Source("mongodb", ts_ms=5))
    assert not is_by_time(Source("mysql", ts_ms=5))
    assert not is_by_time(Source("custom", file="bin.000001"))
    assert source_micros(Source(ts_ms=2**62), 7) == 7000
    assert source_micros(Source(ts_ms=-1)) is None


def test_a_position_is_one_of_its_log() -> None:
    assert log_of(POSTGRES, "auto") == "shop"
    assert log_of(POSTGRES, "timestamp") is None
    assert log_of(POSTGRES._replace(snapshot="incremental"), "auto") is None
    assert log_of(Source("mongodb", name="m", ts_ms=1), "auto") is None
    assert log_of(Source("sqlserver", name="s", db="d", commit_lsn="1"), "auto") == "s/d"
    assert server_of(Source(server_id=0)) is None
    assert server_of(Source(server_id=7, system_identifier="x")) == "7/x"


def test_a_value_that_a_change_carried_is_newer_than_one_that_it_brought_along() -> None:
    seq, later = bytes([1] * 26), bytes([2] * 26)
    assert seq < moved(seq, b"") or moved(seq, b"") == seq
    assert moved(later, own(seq)) < own(later)
    assert own(seq) < moved(later, own(seq))


NUMBERS = st.one_of(
    st.none(),
    st.integers(-(10**38) + 2, 10**38 - 1),
    st.decimals(-(10**20), 10**20, places=9, allow_nan=False),
)


@given(st.lists(NUMBERS, min_size=2, max_size=2))
@settings(max_examples=500)
def test_values_of_columns_compare_as_numbers(values: list[Decimal | int | None]) -> None:
    one, other = (sequence_of_values([each], HERE, snapshot=False) for each in values)
    a, b = (Decimal("-Infinity") if each is None else Decimal(each) for each in values)
    assert (one < other, one == other) == (a < b, a == b)


@pytest.mark.parametrize(
    ("value", "octets"),
    [
        (None, "01" + "00" * 19),
        (Decimal(1), "03" + "00" * 14 + "1000000000"),
        (Decimal("0.000000001"), "03" + "00" * 18 + "01"),
        (0, "03" + "00" * 19),
        (-1, "02" + "99" * 14 + "8999999999"),
        (10**29 - 1, "03" + "99" * 14 + "9000000000"),
        (10**29, "04" + "00" * 4 + "10" + "00" * 14),
        (-(10**29), "01" + "99" * 4 + "89" + "99" * 14),
    ],
)
def test_values_of_columns_are_stored_as_these_bytes(value: Decimal | int | None, octets: str) -> None:
    """They are in mirrors, so they have to stay what they are."""
    found = sequence_of_values([value, None], HERE, snapshot=False)
    assert found.hex() == "0000" + octets + "01" + "00" * 19 + "02" + "0000000000000008"
    read = sequence_of_values([], Origin(), snapshot=True, epochs=[Epoch(1, {("t", 0): 0})])
    assert read.hex() == "0000" + "01" + "00" * 8
    later = sequence_of_values([], Origin("t", 0, 0), snapshot=True, epochs=[Epoch(1, {("t", 0): 0})])
    assert later.hex() == "0001" + "01" + "0000000000000001"


def test_at_equal_values_a_snapshot_row_comes_first_and_offsets_decide() -> None:
    def seq(offset: int, snapshot: bool) -> bytes:
        return sequence_of_values([Decimal(1)], Origin("t", 0, offset), snapshot=snapshot)

    assert seq(9, True) < seq(1, False) < seq(2, False)
    assert can_order(Decimal("0.000000001"))
    assert can_order(Decimal("12345.5"))
    assert can_order(-(10**30))
    assert can_order(-(10**38) + 2)
    assert can_order(Decimal("9" * 29 + ".5"))
    assert not can_order(10**38)
    assert not can_order(Decimal("0.0000000001"))
    assert can_order(10**38 - 1)
    assert not can_order(-(10**38) + 1)
    assert not can_order(Decimal("1" + "0" * 29 + ".5"))


def test_the_place_of_an_event_of_a_list_has_the_length_of_one() -> None:
    """26 bytes, or up to 16 columns: 20 bytes each and 11 more. Only changes of lists say where they are."""
    event = Source("delta", sequence="00" * 26)
    for text in ("00" * 26, "FF" * 31, "FF" * 331):
        listed = event._replace(sequence=text)
        assert misplaced(listed, HERE, by="offset") is None
        assert sequence(listed, HERE, snapshot=False, by="offset") == bytes.fromhex(text)
    for text in ("", "00", "00" * 25, "FF" * 332, "0" * 53, "00" * 26 + "\n", "zz" * 26, "ab" * 26):
        wrong = f"source.sequence is not valid: {text[:50]}"
        assert misplaced(event._replace(sequence=text), HERE, by="offset") == wrong
        other = Source("postgresql", sequence=text)
        assert misplaced(other, HERE, by="offset") is None
        assert misplaced(event._replace(sequence=text), HERE, by="timestamp") == (
            "ordering.by is timestamp, but the record has no source.ts_ms"
        )
    assert misplaced(event._replace(sequence=None), HERE, by="offset") is None


@pytest.mark.parametrize("end", ["\n", "\r\n", " ", "\u2028"])
def test_a_line_feed_is_no_part_of_a_position(end: str) -> None:
    for name, text in (
        ("commit_lsn", "12"),
        ("change_lsn", "00000025:00000d98:00a2"),
        ("scn", "5"),
        ("file", "b.1"),
    ):
        assert misplaced(Source(**{name: text}), HERE) is None
        assert misplaced(Source(**{name: text + end}), HERE) == f"source.{name} is not valid: {text}{end}"


def test_an_offset_says_something_in_its_own_partition_only() -> None:
    assert HERE.follows(HERE._replace(offset=6))
    assert not HERE.follows(HERE)
    assert not HERE.follows(Origin("shop.public.other", 0, 6))
    assert not HERE.follows(Origin("shop.public.t", 1, 6))


def test_the_first_offset_and_the_first_time_are_valid() -> None:
    assert misplaced(POSTGRES, HERE._replace(offset=0)) is None
    assert misplaced(POSTGRES, HERE._replace(offset=-1)) == "offset is not valid: -1"
    assert source_micros(Source(ts_us=0)) == 0
    assert source_micros(Source(ts_us=-1, ts_ms=5)) == 5000


def test_what_a_position_lacks_is_zero() -> None:
    assert parts(Source("mysql", file="mysql-bin.000012"))[1:] == (12, 0, 1)
    nowhere = sequence(Source("custom"), Origin("topic", 0), snapshot=False, by="offset")
    assert nowhere == bytes(25) + b"\1"


def test_an_event_with_a_position_is_the_same_wherever_it_is_read() -> None:
    read = Source("postgresql", name="shop", sequence='["40","50"]')  # a row of an incremental snapshot
    assert identity(read, "auto") == ("shop", None, None, None)
    assert identity(read._replace(sequence='["40",null]'), "auto") is None
    assert identity(POSTGRES._replace(sequence=None), "auto") == ("shop", None, None, None)
    assert identity(POSTGRES, "offset") is None
    assert identity(POSTGRES._replace(db="d"), "auto") == ("shop", None, None, None)
    two = [Source("sqlserver", name="shop", db=each, commit_lsn="00000025:00000d98:00a2") for each in "ab"]
    assert identity(two[0], "auto") != identity(two[1], "auto")


def test_an_anchored_change_has_the_length_of_a_sequence() -> None:
    seq, base = bytes(range(26)), bytes(range(100, 126))
    assert anchored_at(own(seq), base) == base[:12] + seq[12:]
    assert epoch_of(seq) == b"\0\1"


def test_the_largest_part_of_a_position_is_valid() -> None:
    assert misplaced(POSTGRES._replace(lsn=10**18 - 1), HERE) is None
    assert misplaced(POSTGRES._replace(lsn=10**18), HERE) == f"source.lsn is not valid: {10**18}"
    binlog = Source("mysql", file="mysql-bin.000012", pos=4, row=2**31 - 2, event_serial_no=2**31 - 2)
    assert misplaced(binlog, HERE) is None
    assert misplaced(binlog._replace(row=2**31 - 1), HERE) == f"source.row is not valid: {2**31 - 1}"


def test_a_sequence_is_one_of_postgres_where_there_is_an_lsn() -> None:
    odd = Source("another", lsn=5, sequence="odd")
    assert misplaced(odd, HERE) == "source.sequence is not valid: odd"
    assert misplaced(odd._replace(lsn=None, file="bin.000001"), HERE) is None


def test_a_row_of_a_snapshot_comes_before_changes_wherever_times_or_offsets_order() -> None:
    for by in ("timestamp", "offset"):
        assert parts(Source(ts_us=99), snapshot=True, by=by)[3] == 0
        assert parts(Source(ts_us=99), by=by)[3] == 1
    assert parts(Source(ts_us=99), snapshot=True) == (0, 99, 8, 0)


def test_a_list_of_changes_keeps_its_places_where_offsets_order_only() -> None:
    listed = Source("delta", sequence="0A" * 26, ts_us=99)
    assert sequence(listed, HERE, snapshot=False, by="offset") == b"\x0a" * 26
    assert parts(listed, by="timestamp") == (0, 99, 8, 1)
    assert parts(listed._replace(connector="other"), by="offset") == (0, 0, 8, 1)
    assert parts(listed._replace(sequence=None), by="offset") == (0, 0, 8, 1)


def test_an_epoch_begins_at_offsets_of_partitions_that_it_names() -> None:
    epochs = [Epoch(1, {("t", 0): 10})]

    def epoch(origin: Origin) -> bytes:
        return sequence(POSTGRES, origin, snapshot=False, epochs=epochs)[:2]

    assert epoch(Origin("t", 0, 10)) == b"\0\1"
    for origin in (Origin("t", 0), Origin("t", None, 10), Origin(None, 0, 10), Origin("u", 0, 10), Origin()):
        assert epoch(origin) == b"\0\0"


def test_records_without_a_place_follow_nothing() -> None:
    here = Origin("t", 0, 5)
    assert here.follows(Origin("t", 0, 4))
    for other in (Origin("t", 0), Origin("t", None, 4), Origin(None, 0, 4), Origin(None, None, 4)):
        assert not here.follows(other)
        assert not other.follows(here._replace(offset=3))
        assert not other._replace(offset=9).follows(other._replace(offset=8)) or other.partition == 0
    assert Origin("t", 0).in_partition_of(here)
    assert not Origin(None, 0, 9).in_partition_of(Origin(None, 0, 8))
    assert not Origin("t", None, 9).in_partition_of(Origin("t", None, 8))


def test_texts_that_say_that_something_is_missing_say_nothing() -> None:
    for text in ("", "NULL", "null"):
        assert parts(Source("oracle", scn="70", commit_scn=text)) == (0, 70, 70, 1)
        assert parts(Source("sqlserver", commit_lsn=text, change_lsn="5")) == (0, 5, 5, 1)
        assert parts(Source("sqlserver", commit_lsn="5", change_lsn=text)) == (0, 5, 0, 1)
        assert is_by_time(Source("custom", file=text, scn=text, commit_lsn=text, change_lsn=text))
        assert misplaced(Source("oracle", scn="5", commit_scn=text), HERE) is None
    for name in ("file", "scn", "commit_lsn", "change_lsn"):
        assert not is_by_time(Source("custom", **{name: "5"}))


def test_a_position_with_the_tie_of_an_event() -> None:
    assert parts(Source("sqlserver", commit_lsn="5", change_lsn="5"))[3] == 1
    assert parts(Source("sqlserver", commit_lsn="5", change_lsn="5", event_serial_no=0))[3] == 1
    assert parts(Source("sqlserver", commit_lsn="5", change_lsn="5", event_serial_no=1))[3] == 2
    assert parts(Source("sqlserver", commit_lsn="5", change_lsn="5", event_serial_no=1), snapshot=True) == (
        *(0, 5),
        *(0, 0),
    )


def test_a_log_is_that_of_its_source() -> None:
    for by, log in (
        ("auto", "shop"),
        ("lsn", "shop"),
        ("binlog", "shop"),
        ("offset", None),
        ("columns", None),
    ):
        assert log_of(POSTGRES, by) == log  # type: ignore[arg-type]
    assert log_of(POSTGRES._replace(name=None), "auto") == ""
    assert log_of(POSTGRES._replace(db="d"), "auto") == "shop"
    assert log_of(Source("sqlserver", name="s", commit_lsn="1"), "auto") == "s"


def test_a_server_is_what_a_record_names_of_it() -> None:
    assert server_of(Source(server_id=7)) == "7"
    assert server_of(Source(system_identifier="x", timeline="2")) == "x/2"
    assert server_of(Source(timeline="2")) == "2"


def test_the_last_time_is_the_end_of_the_year_9998() -> None:
    last = 253_370_764_799_999_999
    assert source_micros(Source(ts_us=last)) == last
    assert source_micros(Source(ts_us=last + 1)) is None
    assert source_micros(Source(ts_ms=last // 1000)) == last - 999
    assert source_micros(Source(ts_ms=last // 1000 + 1)) is None
    assert source_micros(Source(ts_us=last + 1, ts_ms=5)) == 5000
    assert source_micros(Source(), None, 7, 8) == 7000
    assert misplaced(Source(ts_us=last + 1, ts_ms=5), HERE) == f"source.ts_us is not valid: {last + 1}"
    assert misplaced(Source(ts_ms=last), HERE) == f"source.ts_ms is not valid: {last}"
    assert misplaced(Source(ts_ms=last), HERE, by="offset") is None


def test_a_record_without_a_partition_may_have_a_place() -> None:
    assert misplaced(POSTGRES, Origin()) is None
    assert misplaced(POSTGRES, Origin("t", 0, 2**63 - 2)) is None
    assert misplaced(POSTGRES, Origin("t", None, -1)) == "offset is not valid: -1"
    assert misplaced(POSTGRES._replace(lsn=-1), HERE, by="offset") is None, "it orders nothing"
    for by in ("auto", "lsn", "binlog"):
        assert misplaced(POSTGRES._replace(lsn=-1), HERE, by=by) == "source.lsn is not valid: -1"  # type: ignore[arg-type]


def test_a_declared_position_may_be_any_of_those_that_it_can_be() -> None:
    change = Source("sqlserver", change_lsn="5")
    assert misplaced(change, HERE, by="lsn") is None
    assert misplaced(Source("postgresql", sequence='["5","7"]'), HERE, by="lsn") is None
    assert misplaced(Source(ts_ms=5), HERE, by="timestamp") is None
    assert misplaced(Source("mysql", file="b.1"), HERE, by="binlog") is None
    for by in ("offset", "columns", "auto"):
        assert misplaced(Source(), HERE, by=by) is None  # type: ignore[arg-type]


def test_an_open_transaction_is_one_of_postgres() -> None:
    assert is_unanchored(Source(lsn=5), snapshot=False, by="lsn")
    assert not is_unanchored(Source(lsn=5), snapshot=True, by="auto")
    assert not is_unanchored(Source(sequence='[null,"5"]'), snapshot=False, by="auto")
    assert not is_unanchored(Source("mysql", file="b.1"), snapshot=False, by="auto")
