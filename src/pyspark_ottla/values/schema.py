"""Spark's types from text: `id BIGINT, tags ARRAY<STRING>`, or what `StructType.json()` writes.

Spark's own reader of this text is in its JVM, and data sources are made in a Python process that has
none. So this one reads the types that decoded values may have, with Spark's names for them. As in
Spark's from_json every field may be null, whatever the text says: a value may lack it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_TOKEN: Final = re.compile(
    r"(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)+)`|(?P<text>'(?:[^'\\]|\\.)*')|(?P<sign>[<>(),:])"
)
_SIMPLE: Final[dict[str, Callable[[], DataType]]] = {
    "boolean": BooleanType,
    "tinyint": ByteType,
    "byte": ByteType,
    "smallint": ShortType,
    "short": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_MOST_DIGITS: Final = 38
_DEEPEST: Final = 100  # levels


def struct_of(text: str) -> StructType:
    """The struct that the text describes; ValueError says what is wrong with it."""
    if not text.lstrip().startswith("{"):
        return _Parser(text).struct()
    try:
        parsed = nullable(StructType.fromJson(json.loads(text)))
    except (ValueError, KeyError, TypeError, AttributeError, PySparkException) as error:
        raise ValueError(f"it is no StructType in JSON ({error})") from None
    except RecursionError:
        raise ValueError(f"it is nested deeper than {_DEEPEST} levels") from None
    if not isinstance(parsed, StructType):
        raise ValueError("it is no StructType in JSON")
    return parsed


def nullable(kind: DataType) -> DataType:
    """The type with everything in it nullable, and without metadata."""
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, nullable(each.dataType)) for each in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


class _Token(NamedTuple):
    text: str
    at: int  # in the whole text
    kind: str = "sign"

    @property
    def lowered(self) -> str:
        return self.text.lower() if self.kind == "word" else self.text

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "quoted")


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[_Token] = []
        at = 0
        while at < len(text):
            if text[at].isspace():
                at += 1
                continue
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"{text[at]!r} at character {at + 1} makes no sense")
            kind = found.lastgroup or "sign"
            self._tokens.append(_Token(found[kind].replace("``", "`"), at, kind))
            at = found.end()
        self._tokens.append(_Token("", len(text), "end"))
        self._at = 0
        self._depth = 0

    def struct(self) -> StructType:
        """All of the text: fields, or a struct of them."""
        wrapped = self._next.lowered == "struct" and self._tokens[1].text == "<"
        parsed = self._type() if wrapped else self._fields("")
        if self._next.kind != "end":
            raise self._unexpected("a comma or the end")
        assert isinstance(parsed, StructType)
        return parsed

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _took(self, *words: str) -> bool:
        """Whether the next tokens are these; then they are taken."""
        following = self._tokens[self._at : self._at + len(words)]
        if [each.lowered for each in following] != list(words):
            return False
        self._at += len(words)
        return True

    def _need(self, sign: str) -> None:
        if not self._took(sign):
            raise self._unexpected(repr(sign))

    def _unexpected(self, wanted: str) -> ValueError:
        token = self._next
        found = "the end" if token.kind == "end" else repr(token.text)
        return ValueError(f"{found} at character {token.at + 1}, where {wanted} should be")

    def _fields(self, closing: str) -> StructType:
        fields: list[StructField] = []
        while not (closing and not fields and self._took(closing)):
            if not self._next.is_name:
                raise self._unexpected("a field's name")
            name = self._take()
            if any(each.name == name.text for each in fields):
                raise ValueError(f"the field {name.text!r} is there twice")
            self._took(":")
            fields.append(StructField(name.text, self._type()))
            self._took("not", "null")
            if self._took("comment") and self._take().kind != "text":
                raise ValueError(f"the comment of {name.text!r} is no text in quotes")
            if self._took(","):
                continue
            if closing:
                self._need(closing)
            break
        return StructType(fields)

    def _type(self) -> DataType:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
        if self._next.kind != "word":
            raise self._unexpected("a type")
        name = self._take()
        parsed = self._type_named(name)
        self._depth -= 1
        return parsed

    def _type_named(self, name: _Token) -> DataType:
        word = name.lowered
        if word in _SIMPLE:
            return _SIMPLE[word]()
        if word in _DECIMALS:
            return self._decimal()
        if word == "struct":
            self._need("<")
            return self._fields(">")
        if word == "array":
            self._need("<")
            element = self._type()
            self._need(">")
            return ArrayType(element)
        if word == "map":
            self._need("<")
            key = self._type()
            self._need(",")
            value = self._type()
            self._need(">")
            return MapType(key, value)
        raise ValueError(
            f"{name.text!r} at character {name.at + 1} is no type that values are decoded to: "
            f"there are {', '.join(sorted({*_SIMPLE, 'decimal', 'struct', 'array', 'map'}))}"
        )

    def _decimal(self) -> DecimalType:
        if not self._took("("):
            return DecimalType()
        precision, scale = self._number(), 0
        if self._took(","):
            scale = self._number()
        self._need(")")
        if not 1 <= precision <= _MOST_DIGITS or scale > precision:
            raise ValueError(f"DECIMAL({precision},{scale}) has too many digits")
        return DecimalType(precision, scale)

    def _number(self) -> int:
        if not (self._next.text.isascii() and self._next.text.isdigit()):
            raise self._unexpected("a number")
        return int(self._take().text)
