"""Where change events come from, and in which envelope."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from lakemirror.api.base import (
    IS_SET,
    Location,
    Matching,
    Model,
    PlainHost,
    SecretName,
    TopicName,
    rules,
    wrong,
)
from lakemirror.api.checks import moment, regular_expression
from lakemirror.api.logins import WithoutLogin


def _number(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10 else key


Partition = Annotated[int, BeforeValidator(_number), Field(ge=0, le=999_999_999)]
Offset = Annotated[int, Field(ge=0, le=2**63 - 1)]
StartOffset = Annotated[int, Field(ge=-2, le=2**63 - 1)]
Moment = Annotated[str, Field(max_length=40), AfterValidator(moment)]

_SERVER: Final = r"([^\s,:/\[\]]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
"""A host or an IPv6 address in brackets, and a port."""


class FromTimestamp(Model):
    """Start with the first record at or after a point in time."""

    timestamp: Moment
    """A time with its time zone, like 2026-03-01T00:00:00Z."""


def _kind_of_start(value: Any) -> str:
    if isinstance(value, FromTimestamp):
        return "<moment>"
    if isinstance(value, dict):
        return "<moment>" if isinstance(value.get("timestamp"), str) else "<offsets>"
    return "<word>"


def _start_word(value: Any) -> Any:
    if value not in ("earliest", "latest"):
        raise wrong(
            "must be earliest, latest, {topic: {partition: offset}} or {timestamp: 2026-03-01T00:00:00Z}, "
            f"not {value!r}"
        )
    return value


PLACEHOLDER = "__debezium_unavailable_value"
"""Debezium's default for unavailable.value.placeholder."""

NO_SCALAR = {
    "not": {"enum": [True, False]},
    "minLength": 1,
    "maxLength": 0,
    "minimum": 1,
    "maximum": 0,
    "minItems": 1,
    "maxItems": 0,
}
"""A schema without a type that no text, number, truth value or list can meet: the bounds contradict."""

StartingOffsets = Annotated[
    Annotated[Literal["earliest", "latest"], BeforeValidator(_start_word), Tag("<word>")]
    | Annotated[FromTimestamp, Tag("<moment>")]
    | Annotated[
        dict[TopicName, Annotated[dict[Partition, StartOffset], Field(min_length=1, max_length=10_000)]],
        Field(min_length=1, max_length=1000),
        Tag("<offsets>"),
    ],
    Discriminator(_kind_of_start),
    WithJsonSchema(
        {
            # Text or object: no type can say so. The second arm is true of objects alone.
            "x-kubernetes-preserve-unknown-fields": True,
            "anyOf": [
                {"enum": ["earliest", "latest"]},
                {**NO_SCALAR, "minProperties": 1, "maxProperties": 1000},
            ],
        }
    ),
]


class KafkaOAuth(Model):
    """Where OAUTHBEARER gets its tokens."""

    token_endpoint_url: Annotated[
        str,
        Field(max_length=2048),
        Matching(
            r"""^https?://[^\s/@,"'\\]+(/[^\s@,"'\\]*)?$""",
            "is not a valid address: write https:// or http://, host and path; tokens in files are not read",
        ),
    ]
    """Kafka's sasl.oauthbearer.token.endpoint.url."""
    scope: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """The scope of the token."""


class KafkaSecurity(Model):
    """How to log in to Kafka."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.protocol.startsWith('SASL_') == has(self.mechanism)",
                "mechanism is needed with SASL_PLAINTEXT and SASL_SSL, and only there",
            ),
            (
                "has(self.oauth) == (has(self.mechanism) && self.mechanism == 'OAUTHBEARER')",
                "oauth is needed with OAUTHBEARER, and only there",
            ),
            ("!self.protocol.startsWith('SASL_') || has(self.secret)", "secret is required with SASL"),
            ("self.protocol != 'PLAINTEXT' || !has(self.secret)", "PLAINTEXT does not use a secret"),
        )
    )

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    """Kafka's security.protocol."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    """Kafka's sasl.mechanism."""
    secret: SecretName | None = None
    """A Secret with username and password or clientId and clientSecret (SASL), ca.crt, tls.crt, tls.key."""
    oauth: KafkaOAuth | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sasl = self.protocol.startswith("SASL_")
        if sasl and self.mechanism is None:
            raise wrong(f"is required with {self.protocol}", "mechanism")
        if not sasl and self.mechanism is not None:
            raise wrong(f"belongs to SASL, but the protocol is {self.protocol}", "mechanism")
        if self.mechanism == "OAUTHBEARER" and self.oauth is None:
            raise wrong("is required with OAUTHBEARER: tokenEndpointUrl, and scope if need be", "oauth")
        if self.mechanism != "OAUTHBEARER" and self.oauth is not None:
            raise wrong(f"belongs to OAUTHBEARER, but the mechanism is {self.mechanism}", "oauth")
        if sasl and self.secret is None:
            keys = "clientId and clientSecret" if self.oauth is not None else "username and password"
            raise wrong(f"is required with {self.protocol}: a Secret with {keys}", "secret")
        if self.protocol == "PLAINTEXT" and self.secret is not None:
            raise wrong("is not used by PLAINTEXT: leave it out, or use SSL or SASL_SSL", "secret")
        return self


TopicTemplate = Annotated[
    str,
    Field(max_length=249),
    Matching(
        r"^([a-zA-Z0-9._-]|\{(db|schema|table)\})+$",
        "is not a valid name of a topic: use letters, digits, '.', '_', '-' and the placeholders {db}, "
        "{schema} and {table}",
    ),
]


class KafkaSource(Model):
    """Topics of a Kafka cluster."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "has(self.topics) != has(self.topicPattern)",
                "exactly one of topics and topicPattern is needed",
            ),
        )
    )

    bootstrap_servers: Annotated[
        str,
        Field(max_length=4096),
        Matching(
            rf"^{_SERVER}(,{_SERVER})*$",
            "is not a valid list of servers: write host:port, or [IPv6]:port, with commas and without spaces",
        ),
    ]
    """Bootstrap brokers: a comma-separated list of host:port."""
    topics: (
        Annotated[
            list[TopicName],
            Field(min_length=1, max_length=1000, json_schema_extra=IS_SET),
        ]
        | None
    ) = None
    """Names of topics."""
    topic_pattern: (
        Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(regular_expression)] | None
    ) = None
    """A Java regular expression that matches whole topic names; new topics that match are picked up."""
    starting_offsets: StartingOffsets = "earliest"
    """Where a new checkpoint starts: earliest, latest, {topic: {partition: offset}} or {timestamp: ...}."""
    max_records_per_batch: Annotated[int, Field(ge=1, le=1_000_000_000)] = 500_000
    """The most records that a batch reads."""
    security: KafkaSecurity | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.topics is None and self.topic_pattern is None:
            raise wrong("one of topics and topicPattern is required")
        if self.topics is not None and self.topic_pattern is not None:
            raise wrong("topics is given already: give only one of the two", "topicPattern")
        twice = first_twice(self.topics or [])
        if twice is not None:
            raise wrong(f"{twice} is listed twice", "topics")
        return self


FilePattern = Annotated[
    str,
    Field(max_length=1024),
    Matching(r"^\S(.*\S)?$", "is not a valid path: it must not be empty, nor begin or end with a space"),
    WithoutLogin(),
    PlainHost(),
]


class CsvFormat(Model):
    """The dialect of CSV files. Fields with delimiters, quotes or line breaks are quoted as in RFC 4180."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "self.header != has(self.columns)",
                "columns is needed with header: false, and only there",
            ),
        )
    )

    delimiter: Annotated[
        str,
        Field(min_length=1, max_length=1),
        Matching(r'^[^"\r\n]$', "is not one character that is neither a quote nor the end of a line"),
    ] = ","
    """The character between two fields."""
    header: bool = True
    """Whether the first line of each file has the names of its columns."""
    columns: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=255)]],
            Field(min_length=1, max_length=2000, json_schema_extra=IS_SET),
        ]
        | None
    ) = None
    """The names of the columns in order, for files without a header."""
    null_value: Annotated[str, Field(max_length=64)] = ""
    """The unquoted field that means null, such as NULL. Default: an empty field."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.header and self.columns is not None:
            raise wrong("belongs to header: false, for otherwise the files themselves name them", "columns")
        if not self.header and self.columns is None:
            raise wrong("is required with header: false", "columns")
        twice = first_twice(self.columns or [])
        if twice is not None:
            raise wrong(f"{twice} is listed twice", "columns")
        return self


class FilesSource(Model):
    """Files in one or more directories."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("!has(self.csv) || self.format == 'csv'", "csv belongs to format csv"),
            (
                "self.format != 'records' || !has(self.table)",
                "table has no meaning with format records, whose records have a topic",
            ),
        )
    )

    path: FilePattern
    """A directory, a file or a glob pattern (* ? [] {}), on any file system that Hadoop supports."""
    format: Literal["records", "json", "avro", "parquet", "csv"] = "records"
    """records: Kafka records saved as JSON Lines; the other formats hold one event per row."""
    order: Literal["name", "time"] = "name"
    """The order in which files are read: by name, or by time of modification."""
    table: Annotated[str, Field(min_length=1, max_length=767)] | None = None
    """The table of rows that do not name one, such as hr.employees. By default directories name it: those
    that are patterns in the path, otherwise the last one.
    """
    csv: CsvFormat | None = None
    max_files_per_batch: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """The most files that a batch reads."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.csv is not None and self.format != "csv":
            raise wrong(f"belongs to format csv, but the format is {self.format}", "csv")
        if self.table is not None and self.format == "records":
            raise wrong("has no meaning with format records, whose records have a topic", "table")
        return self


class ChangeFeedSource(Model):
    """The change data feed of a Delta table."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("has(self.table) != has(self.path)", "exactly one of table and path is needed"),
            (
                "!(has(self.startingVersion) && has(self.startingTimestamp))",
                "only one of startingVersion and startingTimestamp can be given",
            ),
        )
    )

    table: Annotated[str, Field(min_length=1, max_length=767)] | None = None
    """The name of the table in the catalog."""
    path: Annotated[Location, WithoutLogin(), PlainHost()] | None = None
    """The path of the table."""
    starting_version: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    """The version from which a new checkpoint reads."""
    starting_timestamp: Moment | None = None
    """The time from which a new checkpoint reads."""
    net_changes: bool = False
    """Whether a batch has one change per key: the net effect of all."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.table is None and self.path is None:
            raise wrong("one of table and path is required")
        if self.table is not None and self.path is not None:
            raise wrong("table is given already: give only one of the two", "path")
        if self.starting_version is not None and self.starting_timestamp is not None:
            raise wrong("startingVersion is given already: give only one of the two", "startingTimestamp")
        return self


class Source(Model):
    """Where change events come from: exactly one of kafka, files and changeFeed."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            (
                "[has(self.kafka), has(self.files), has(self.changeFeed)].exists_one(given, given)",
                "exactly one of kafka, files and changeFeed is needed",
            ),
        )
    )

    kafka: KafkaSource | None = None
    files: FilesSource | None = None
    change_feed: ChangeFeedSource | None = None
    table_topics: (
        Annotated[list[TopicTemplate], Field(min_length=1, max_length=100, json_schema_extra=IS_SET)] | None
    ) = None
    """The topics that may change a table, with the placeholders {db}, {schema} and {table}, such as
    shop.{schema}.{table}. A record of another topic that names the table goes to quarantine. Default: any
    topic may change any table. tables[].topics comes before it.
    """

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [
            name
            for name, source in (
                ("kafka", self.kafka),
                ("files", self.files),
                ("changeFeed", self.change_feed),
            )
            if source is not None
        ]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise wrong(f"exactly one of kafka, files and changeFeed is needed, found {found}")
        twice = first_twice(self.table_topics or [])
        if twice is not None:
            raise wrong(f"{twice} is listed twice", "tableTopics")
        return self

    @property
    def has_topics(self) -> bool:
        """Whether its records have topics of Kafka."""
        return self.kafka is not None or (self.files is not None and self.files.format == "records")


class SchemaRegistry(Model):
    """A schema registry, Confluent's or Apicurio's."""

    url: Annotated[
        str,
        Field(max_length=2048),
        Matching(
            r"^https?://[^\s/@]+(/[^\s@]*)?$",
            "is not a valid address: write http:// or https:// and host:port",
        ),
        WithoutLogin(),
    ]
    """The URL of the registry. Credentials belong in the secret."""
    secret: SecretName | None = None
    """A Secret with username and password, or ca.crt, tls.crt and tls.key."""
    use_id: Literal["globalId", "contentId"] | None = None
    """The converter's apicurio.registry.use-id."""


FieldPath = Annotated[
    str,
    Field(max_length=1024),
    Matching(
        r"^[^.]+(\.[^.]+)*$",
        "is not a valid path to a field: write names with dots between, like data.after",
    ),
]


class CustomFields(Model):
    """Where the parts of a change stand in a custom record: dotted paths into its value."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    op: FieldPath | None = None
    """The operation; see opMap. Without it each record is the newest state of its row."""
    before: FieldPath | None = None
    """The row before the change."""
    after: FieldPath | None = None
    """The row after the change. Without it the record itself is the row."""
    key: FieldPath | None = None
    """The key of the row."""
    timestamp: FieldPath | None = None
    """When the source made the change."""
    table: FieldPath | None = None
    """The name of the table."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.model_fields_set:
            raise wrong("must name at least one field")
        return self


class Envelope(Model):
    """How records represent change events."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            ("(self.format == 'custom') == has(self.fields)", "fields is needed with custom, and only there"),
            ("self.format == 'custom' || !has(self.opMap)", "opMap belongs to custom"),
            (
                "(self.encoding == 'avro') == has(self.schemaRegistry)",
                "schemaRegistry is needed with avro, and only there",
            ),
        )
    )

    format: Literal["debezium", "debezium-flat", "maxwell", "custom"] = "debezium"
    """The format of the change events."""
    encoding: Literal["json", "avro"] = "json"
    """How keys and values are encoded."""
    schema_registry: SchemaRegistry | None = None
    fields: CustomFields | None = None
    """Where the parts of a custom envelope are."""
    op_map: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Literal["c", "u", "d", "r", "t", "ignore"]],
            Field(min_length=1, max_length=32),
        ]
        | None
    ) = None
    """Maps the operations of a custom envelope to c (create), u (update), d (delete), r (read), t (truncate)
    or ignore (no change of a row). Default: these letters, i, insert, create, update, delete, read, load and
    truncate, in any case. The empty key "" stands for records without an operation.
    """
    null_value: Literal["delete", "ignore"] = "delete"
    """With debezium-flat and custom envelopes, what a record with a key and a null value does: it deletes the
    key's row, or it is ignored because the delete is another record.
    """
    unavailable_value_placeholder: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Debezium's unavailable.value.placeholder."""

    @property
    def placeholder(self) -> str | None:
        """The text that stands for a value that Debezium did not send; None if records have no such text."""
        if self.format in ("maxwell", "custom"):
            return None
        return self.unavailable_value_placeholder or PLACEHOLDER

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        custom = self.format == "custom"
        if custom and self.fields is None:
            raise wrong("is required with format custom", "fields")
        if not custom and self.fields is not None:
            raise wrong(f"belongs to format custom, but the format is {self.format}", "fields")
        if not custom and self.op_map is not None:
            raise wrong(f"belongs to format custom, but the format is {self.format}", "opMap")
        if self.encoding == "avro" and self.schema_registry is None:
            raise wrong("is required with encoding avro", "schemaRegistry")
        return self


def first_twice(names: list[str]) -> str | None:
    """Return the first name that has occurred before, if any."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
