"""Messages of the wire: one class per message for all of its versions.

A message is declared as a class whose annotations name wire types and whose assignments give the
default and, where it differs from "in every version", the range of versions that carry the field:

    class Topic(Part):
        name: String = ""
        topic_id: Uuid = field(default=ZERO_UUID, since=13)

    class ExampleRequest(Message, api_key=ApiKey.FETCH, versions=(0, 17), flexible_since=12):
        topics: list[Topic] = EMPTY

The class is the superset of all versions. A field that a version lacks decodes to its default; on
encoding it is left out when it is ignorable or holds its default, and refused otherwise, so that a
wish that the peer would not see is never dropped in silence.

Declaring must be cheap, because a broker imports hundreds of these: the annotations stay strings,
and the constructor, the decoders and the encoders are generated on first use (see `compiler`).
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Generator
from struct import error as struct_error
from typing import Any, ClassVar, Final, Self, TypeAlias, dataclass_transform

# The wire types. To a type checker they are the Python types they decode to; the compiler reads
# their names. `Uuid` is 16 raw bytes, which are cheaper than uuid.UUID and hash as fast.
Bool: TypeAlias = bool
Int8: TypeAlias = int
Int16: TypeAlias = int
UInt16: TypeAlias = int
Int32: TypeAlias = int
UInt32: TypeAlias = int
Int64: TypeAlias = int
Float64: TypeAlias = float
Uuid: TypeAlias = bytes
String: TypeAlias = str
Bytes: TypeAlias = bytes
# Decodes to a memoryview of the buffer, without a copy. Encodes any bytes-like object, and in
# `encode_parts` any object that has a length (a range of a file), which is passed on untouched.
Records: TypeAlias = Any

Buffer: TypeAlias = bytes | bytearray | memoryview
Decoder: TypeAlias = Callable[[Buffer, int], tuple[Any, int]]
Encoder: TypeAlias = Callable[[Any, Callable[[Any], None]], None]

ZERO_UUID: Final = bytes(16)
# Above every version there is: the end of ranges that are still open, and the first flexible
# version of messages that have none.
NEVER: Final = 32767


class _Empty:
    """The default that stands for a fresh list, or a fresh part where a part is required."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Any = _Empty()


class MalformedMessage(ValueError):
    """The bytes are not the message they claim to be."""


class UnencodableMessage(ValueError):
    """The message holds something that the version (or the protocol) cannot carry."""


class Field:
    """What a declaration says about one field; the type is read from the annotation later."""

    __slots__ = (
        "default",
        "ignorable",
        "nullable_since",
        "nullable_until",
        "since",
        "tag",
        "tagged_since",
        "until",
    )

    def __init__(
        self,
        default: Any,
        since: int = 0,
        until: int = NEVER,
        nullable_since: int = 0,
        nullable_until: int = NEVER,
        tag: int | None = None,
        tagged_since: int = 0,
        ignorable: bool = False,
    ) -> None:
        self.default = default
        self.since = since  # first and last version that carry the field
        self.until = until
        # The versions in which null is allowed; of no meaning unless the annotation says `| None`.
        self.nullable_since = nullable_since
        self.nullable_until = nullable_until
        self.tag = tag
        self.tagged_since = tagged_since
        self.ignorable = ignorable


def field(
    *,
    default: Any,
    since: int = 0,
    until: int = NEVER,
    nullable_since: int = 0,
    nullable_until: int = NEVER,
    tag: int | None = None,
    tagged_since: int = 0,
    ignorable: bool = False,
) -> Any:
    """A field that differs from the plain "in every version, never tagged, not ignorable"."""
    return Field(
        default, since, until, nullable_since, nullable_until, tag, tagged_since, ignorable
    )


@dataclass_transform(kw_only_default=True, eq_default=True, field_specifiers=(field,))
class PartType(type):
    """Turns the declarations into slots and keeps them for the compiler."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        **keywords: Any,
    ) -> PartType:
        annotations: dict[str, str] = namespace.get("__annotations__", {})
        if "__slots__" not in namespace:
            namespace["__slots__"] = tuple(annotations)
            # Slots and class attributes of one name exclude each other, so the defaults move.
            namespace["declared"] = {each: namespace.pop(each) for each in annotations}
            namespace["decoders"] = {}
            namespace["encoders"] = {}
        return super().__new__(mcls, name, bases, namespace, **keywords)


class Part(metaclass=PartType):
    """A structure inside messages. It has no versions of its own: it follows its message."""

    __slots__ = ()

    # Name of each field in wire order -> its default or its `Field`.
    declared: ClassVar[dict[str, Any]] = {}
    decoders: ClassVar[dict[int, Decoder]] = {}
    encoders: ClassVar[dict[int, Encoder]] = {}

    def __init__(self, **values: Any) -> None:
        # Runs once per class: the generated constructor takes its place.
        from ottla.protocol.compiler import install_constructor

        install_constructor(type(self))(self, **values)

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.declared)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={_shown(getattr(self, name))}" for name in self.declared)
        return f"{type(self).__name__}({values})"


def _shown(value: object) -> str:
    if isinstance(value, (memoryview, bytearray)):
        value = bytes(value)
    return repr(value)


class Message(Part):
    """A whole request, response or record schema: what can be decoded and encoded by itself."""

    __slots__ = ()

    # -1 for messages that are no request or response.
    api_key: ClassVar[int] = -1
    # First and last version, both included.
    versions: ClassVar[tuple[int, int]] = (0, 0)
    # From this version on: compact lengths and tagged fields. NEVER where there is none.
    flexible_since: ClassVar[int] = NEVER

    def __init_subclass__(
        cls,
        *,
        api_key: int = -1,
        versions: tuple[int, int] = (0, 0),
        flexible_since: int = NEVER,
    ) -> None:
        cls.api_key = api_key
        cls.versions = versions
        cls.flexible_since = flexible_since

    @classmethod
    def decode(cls, buffer: Buffer, at: int, version: int) -> tuple[Self, int]:
        """The message that starts at `at`, and the position after it.

        The message may take everything up to the end of the buffer, so pass a frame, not a stream.
        Raises MalformedMessage, whatever the bytes are.
        """
        decoder = cls.decoders.get(version) or cls.decoder(version)
        try:
            return decoder(buffer, at)
        except (struct_error, IndexError, UnicodeDecodeError) as error:
            raise cls._malformed(version, error) from error

    @classmethod
    def decode_in_steps(
        cls, buffer: Buffer, at: int, version: int
    ) -> Generator[None, None, tuple[Self, int]]:
        """As `decode`, with a pause after each element of an array: for large messages."""
        from ottla.protocol.compiler import step_decoder

        try:
            return (yield from step_decoder(cls, version)(buffer, at))
        except (struct_error, IndexError, UnicodeDecodeError) as error:
            raise cls._malformed(version, error) from error

    @classmethod
    def _malformed(cls, version: int, error: Exception) -> MalformedMessage:
        how = "holds bad UTF-8" if isinstance(error, UnicodeDecodeError) else "is truncated"
        return MalformedMessage(f"{cls.__name__} v{version} {how}")

    def encode(self, version: int) -> bytes:
        """The message as bytes; records that are not bytes-like are for `encode_parts`."""
        return b"".join(self.encode_parts(version))

    def encode_parts(self, version: int) -> list[Any]:
        """The message as pieces in order; the values of records fields are passed on as is."""
        parts: list[Any] = []
        encoder = self.encoders.get(version) or self.encoder(version)
        try:
            encoder(self, parts.append)
        except (struct_error, AttributeError, TypeError, UnicodeEncodeError) as error:
            raise self._unencodable(version, error) from error
        return parts

    def encode_in_steps(
        self, version: int, append: Callable[[Any], None]
    ) -> Generator[None, None, None]:
        """The pieces in order, given to `append`, with a pause after each element of an array."""
        from ottla.protocol.compiler import step_encoder

        try:
            yield from step_encoder(type(self), version)(self, append)
        except (struct_error, AttributeError, TypeError, UnicodeEncodeError) as error:
            raise self._unencodable(version, error) from error

    def _unencodable(self, version: int, error: Exception) -> UnencodableMessage:
        name = type(self).__name__
        return UnencodableMessage(f"{name} v{version} cannot be encoded: {error}")

    @classmethod
    def decoder(cls, version: int) -> Decoder:
        """The bare decoder of one version, generated on first use.

        It raises struct.error, IndexError and UnicodeDecodeError beside MalformedMessage.
        """
        from ottla.protocol.compiler import install_decoder

        return install_decoder(cls, version)

    @classmethod
    def encoder(cls, version: int) -> Encoder:
        """The bare encoder of one version, generated on first use: encoder(message, append)."""
        from ottla.protocol.compiler import install_encoder

        return install_encoder(cls, version)


# Plain base64 <-> its URL-safe form. (The module base64 would import `re` for this.)
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_PLAIN: Final = bytes.maketrans(b"-_", b"+/")


def uuid_text(identifier: bytes) -> str:
    """A Uuid as Kafka prints it: URL-safe base64 without padding."""
    return binascii.b2a_base64(identifier)[:22].translate(_URL_SAFE).decode("ascii")


def uuid_from_text(text: str) -> bytes:
    """The Uuid that Kafka prints as `text`; ValueError if it is none."""
    if len(text) == 22:
        try:
            plain = text.encode("ascii").translate(_PLAIN) + b"=="
            return binascii.a2b_base64(plain, strict_mode=True)
        except ValueError:
            pass
    raise ValueError(f"{text!r} is no topic id: one has 22 characters of URL-safe base64")
