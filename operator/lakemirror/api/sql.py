"""What is certainly wrong with a condition or an expression in Spark's SQL, found without Spark.

Spark's own parser decides, when the driver starts. Here only those mistakes are found for which no grammar is
needed: operators without operands, operands without an operator, and functions that see more than one row or
have another value each time. What is not certain passes, such as what Spark may take for a type.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


QUOTED: Final = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\""
"""A text in quotes."""
_TOKEN: Final = re.compile(
    rf"(?P<text>[rR]?(?:{QUOTED}))"
    r"|(?P<name>`(?:[^`]|``)*`)"
    r"|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYFD])?(?!\w))"
    r"|(?P<word>[^\W\d]\w*)"
    r"|(?P<sign><=>|->|=>|<>|!=|!<|!>|==|<=|>=|\|\||[=<>+*/%&|^!~,.()\[\]-])"
    r"|(?P<other>\S)",
    re.DOTALL | re.IGNORECASE,
)
_NOT_CHECKED: Final = re.compile(r"--|/\*|::|<<|>>|\bas\b[^()'\"]*<", re.IGNORECASE)
"""Comments, shifts, casts, and types with types inside."""
_BINARY: Final = _words("= == <> != !< !> < <= > >= <=> / % || & | ^ , -> =>")
_PREFIX: Final = _words("+ - ~ !")
_WORDS: Final = _words(
    """
    and or not in is null like ilike rlike regexp similar to between symmetric asymmetric case when
    then else end cast try_cast as true false unknown distinct from interval escape div exists any
    some all collate at time zone for both leading trailing placing over within group order by
    filter where ignore respect nulls first last asc desc partition rows range unbounded preceding
    following current row date timestamp timestamp_ltz timestamp_ntz time x binary json value using
    with without local year years quarter quarters month months week weeks day days dayofyear hour
    hours minute minutes second seconds millisecond milliseconds microsecond microseconds nanosecond
    nanoseconds nan inf infinity position extract substring substr trim overlay
    """
)
"""Words that may stand beside an operand: keywords of expressions, units of time, what begins a literal."""
_MOMENT: Final = _words(
    """
    now current_timestamp current_date current_time curdate localtimestamp current_timezone
    current_user session_user user current_database current_schema current_catalog rand random randn
    randstr uniform uuid shuffle monotonically_increasing_id spark_partition_id input_file_name
    reflect java_method
    """
)
_BARE_MOMENT: Final = _words("current_timestamp current_date current_time localtimestamp")
"""Those that are functions without brackets, too, unless the table has a column of the name."""
_DATED: Final = _words("date timestamp timestamp_ltz timestamp_ntz")
_SPECIAL: Final = re.compile(r".\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""Texts of dates and timestamps that mean another moment each day."""
_AGGREGATES: Final = _words(
    """
    first last count count_if sum try_sum avg try_avg mean mode min max min_by max_by first_value
    last_value any_value collect_list collect_set array_agg listagg string_agg stddev stddev_pop
    stddev_samp std variance var_pop var_samp corr covar_pop covar_samp percentile percentile_approx
    approx_percentile median skewness kurtosis approx_count_distinct bit_and bit_or bit_xor bool_and
    bool_or every count_min_sketch histogram_numeric regr_avgx regr_avgy regr_count regr_intercept
    regr_r2 regr_slope regr_sxx regr_sxy regr_syy hll_sketch_agg hll_union_agg grouping grouping_id
    """
)
_GENERATORS: Final = _words(
    "explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple"
)


class _Token(NamedTuple):
    kind: str
    text: str
    """In lower case where it is a word."""

    @property
    def is_operand(self) -> bool:
        return self.kind in ("text", "name", "number") or (self.kind == "word" and self.text not in _WORDS)


def mistake(sql: str, what: str) -> str | None:
    """Return the first certain mistake of a condition or expression (``what``), as the end of a sentence.

    Args:
        sql: one expression in Spark's SQL, with closed quotes and brackets.
        what: what the message calls it, such as ``a condition``.
    """
    tokens = _tokens(sql)
    found = next(_of_meaning(tokens, what), None)
    if found is None and _NOT_CHECKED.search(sql) is None:
        found = next(_of_form(tokens), None)
    return found


def names(sql: str) -> frozenset[str]:
    """Return the names in a condition or expression, of columns and all else, in lower case."""
    found = (token for token in _tokens(sql) if token.kind in ("word", "name"))
    return frozenset(token.text.strip("`").lower() for token in found)


def _tokens(sql: str) -> list[_Token]:
    found = ((each.lastgroup or "other", each[0]) for each in _TOKEN.finditer(sql))
    return [_Token(kind, text.lower() if kind == "word" else text) for kind, text in found]


def _of_meaning(tokens: Sequence[_Token], what: str) -> Iterator[str]:
    """Yield functions that see several rows, or have another value each time a record is read."""
    for index, (kind, word) in enumerate(tokens):
        before = tokens[index - 1].text if index > 0 else ""
        after = tokens[index + 1] if index + 1 < len(tokens) else _Token("other", "")
        if kind != "word" or before == ".":
            continue
        called = after.text == "("
        empty = called and tokens[index + 2 : index + 3] == [_Token("sign", ")")]
        moment = word in _MOMENT or (empty and word == "unix_timestamp")
        if (called and moment) or (word in _BARE_MOMENT and after.text != "."):
            yield f"has {word}, whose value is not the same each time a record is read{_column(word, called)}"
        elif word in _DATED and after.kind == "text" and _SPECIAL.match(after.text):
            yield f"has {after.text}, whose value is not the same each time a record is read"
        elif called and word == "over" and before == ")":
            yield f"has a window function: {what} sees one row only"
        elif called and word in _AGGREGATES | _GENERATORS:
            yield f"has an aggregate or generator ({word}): {what} sees one row only"


def _column(word: str, called: bool) -> str:
    return "" if called else f". If the table has such a column, write `{word}` in backquotes"


def _of_form(tokens: Sequence[_Token]) -> Iterator[str]:
    """Yield operators without an operand, and operands that stand side by side."""
    if any(token.kind == "other" for token in tokens):
        return
    closed = [_Token("sign", "("), *tokens, _Token("sign", ")")]
    for before, left, right in zip([closed[0], *closed], closed, closed[1:], strict=False):
        if _is(right, _BINARY) and (_is(left, {"(", "["}) or _is_operator(left)):
            yield f"cannot be parsed: nothing stands before {right.text}"
        elif _is(right, {")", "]"}) and (_is_operator(left) or (_is(left, {"*"}) and before.is_operand)):
            yield f"cannot be parsed: nothing stands behind {left.text}"
        elif (
            (left.is_operand or _is(left, {")", "]"})) and right.is_operand and not _go_together(left, right)
        ):
            yield f"cannot be parsed: no operator stands between {left.text} and {right.text}"


def _is(token: _Token, signs: Collection[str]) -> bool:
    return token.kind == "sign" and token.text in signs


def _is_operator(token: _Token) -> bool:
    return _is(token, _BINARY | _PREFIX)


def _ends_one(token: _Token) -> bool:
    """Return whether an operand ends with this token."""
    return token.is_operand or _is(token, {")", "]"})


def _go_together(left: _Token, right: _Token) -> bool:
    """Return whether two operands are one: texts, which Spark puts together, or a name with a number."""
    return left.kind == right.kind == "text" or (right.kind == "number" and right.text.startswith("."))
