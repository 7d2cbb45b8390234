"""Types and values: maps the source's columns to Spark types, and decodes their wire values."""

from lakemirror.driver.parse.values.connect import Field, parse_envelope, parse_key, schemaless
from lakemirror.driver.parse.values.decode import Decoded, RowDecoder, decode, spark_type, wire_type
from lakemirror.driver.parse.values.inference import infer, resolve

__all__ = [
    "Decoded",
    "Field",
    "RowDecoder",
    "decode",
    "infer",
    "parse_envelope",
    "parse_key",
    "resolve",
    "schemaless",
    "spark_type",
    "wire_type",
]
