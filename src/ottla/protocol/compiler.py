"""Generates decoders, encoders and constructors for message classes, on first use.

One function is generated per message and version, with every nested part inlined: no dispatch on
types at run time, no call per part. Neighbouring fields of fixed size, together with the length
that follows them, become one struct call. Nothing here runs at import.

A part that may be null is preceded by a byte: -1 for null and 1 otherwise, or, among the tagged
fields, 0 for null and 1 otherwise.

What the generated decoders promise: every length is checked against the bytes that are left before
anything of that length is made; a count of parts must fit the bytes left if each part took its
smallest size.

Decoders and encoders come in a second form, in steps: generators that pause after each element of an
array, so that a message of a million elements need not be worked on in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import Struct
from typing import Any, Final

from ottla.protocol.message import (
    EMPTY,
    Decoder,
    Encoder,
    MalformedMessage,
    Message,
    Part,
    UnencodableMessage,
)
from ottla.protocol.schema import (
    SIZES,
    Kind,
    Slot,
    default_source,
    slots_of,
    smallest_size,
)
from ottla.protocol.wiretypes import (
    BYTE,
    ArrayUnpackers,
    Shapes,
    long_string_length,
    long_string_prefix,
    pack_elements,
    skip_tags,
    tagged_section,
    unsigned_varint,
    unsigned_varint_at,
)

_structs: dict[str, Struct] = {}

# Elements of fixed size, which cost next to nothing, that are taken in one step.
ELEMENTS_IN_A_STEP: Final = 4096


def _struct(codes: list[str]) -> Struct:
    layout = ">" + "".join(codes)
    struct = _structs.get(layout)
    if struct is None:
        struct = _structs[layout] = Struct(layout)
    return struct


class _Source:
    """Lines of a function under construction and the names it refers to."""

    def __init__(self, version: int, flexible: bool, in_steps: bool = False) -> None:
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self._indent = 1
        self._counter = 0
        # Fields of fixed size that wait to become one struct call: (code, target or expression).
        self.run: list[tuple[str, str]] = []

    def line(self, text: str) -> None:
        self.lines.append("    " * self._indent + text)

    def fresh(self, stem: str) -> str:
        self._counter += 1
        return f"{stem}{self._counter}"

    def bind(self, stem: str, value: Any) -> str:
        """A name for a value, the same one for the same value."""
        for name, known in self.names.items():
            if known is value:
                return name
        name = self.fresh(stem)
        self.names[name] = value
        return name

    def block(self, opening: str) -> _Block:
        self.line(opening)
        return _Block(self)

    def indent(self, by: int) -> None:
        self._indent += by

    def pause(self) -> None:
        """The end of a step, in the form that has steps."""
        if self.in_steps:
            self.line("yield")

    def compile(self, name: str, parameters: str) -> Any:
        source = f"def {name}({parameters}):\n" + "\n".join(self.lines) + "\n"
        exec(compile(source, f"<{name}>", "exec"), self.names)
        return self.names[name]


class _Block:
    def __init__(self, source: _Source) -> None:
        self._source = source

    def __enter__(self) -> None:
        self._source.indent(1)

    def __exit__(self, *_: object) -> None:
        self._source.indent(-1)


class _DecoderSource(_Source):
    """Source of `decode(buffer, at) -> (message, at)`."""

    def __init__(self, version: int, flexible: bool, in_steps: bool = False) -> None:
        super().__init__(version, flexible, in_steps)
        self.names.update(
            new=object.__new__,
            Malformed=MalformedMessage,
            long_string_length=long_string_length,
            unsigned_varint_at=unsigned_varint_at,
            skip_tags=skip_tags,
        )

    def flush(self) -> None:
        if not self.run:
            return
        codes = [code for code, _ in self.run]
        targets = ", ".join(target for _, target in self.run)
        if codes == ["B"]:
            self.line(f"{targets} = buffer[at]")
            size = 1
        else:
            struct = _struct(codes)
            size = struct.size
            unpack = self.bind("unpack", struct)
            # The bound method, not the Struct, is what the function calls.
            self.names[unpack + "_from"] = struct.unpack_from
            self.line(f"{targets}, = {unpack}_from(buffer, at)")
        self.line(f"at += {size}")
        self.run.clear()

    def part(self, part: type[Part]) -> str:
        """Emits the decoding of a part; the name of the variable that will hold it."""
        variable = self.fresh("m")
        self.line(f"{variable} = new({self.bind('Part', part)})")
        present: list[Slot] = []
        tagged: list[Slot] = []
        for slot in slots_of(part):
            if slot.tagged(self.version):
                tagged.append(slot)
            elif slot.present(self.version):
                present.append(slot)
                continue
            default = default_source(slot, self._part_name(slot))
            self.line(f"{variable}.{slot.name} = {default}")
        for slot in present:
            self.value(slot, slot.kind, f"{variable}.{slot.name}", self._nullable(slot))
        if self.flexible:
            self._tags(variable, tagged)
        return variable

    def _part_name(self, slot: Slot) -> str:
        return self.bind("Part", slot.kind.part) if slot.kind.part is not None else ""

    def _nullable(self, slot: Slot) -> bool:
        return slot.null_allowed(self.version)

    def value(
        self, slot: Slot, kind: Kind, target: str, nullable: bool, tagged: bool = False
    ) -> None:
        if kind.name == "fixed":
            self.run.append((kind.code, target))
        elif kind.name == "part":
            self._part_value(kind, target, nullable, tagged)
        elif kind.name == "array":
            self._array(slot, kind, target, nullable)
        else:
            self._sized(slot, kind, target, nullable)

    def _part_value(self, kind: Kind, target: str, nullable: bool, tagged: bool) -> None:
        assert kind.part is not None
        if not nullable:
            variable = self.part(kind.part)
            self.line(f"{target} = {variable}")
            return
        mark = self.fresh("n")
        self.run.append(("b", mark))
        self.flush()
        with self.block(f"if {mark} {'>' if tagged else '>='} 0:"):
            variable = self.part(kind.part)
            self.flush()
            self.line(f"{target} = {variable}")
        with self.block("else:"):
            self.line(f"{target} = None")

    def _length(self, code: str, long: str) -> str:
        """Emits the reading of a length: -1 for null, else the number of bytes or elements."""
        length = self.fresh("n")
        if self.flexible:
            self.run.append(("B", length))
            self.flush()
            with self.block(f"if {length} > 127:"):
                self.line(f"{length}, at = {long}(buffer, at - 1)")
            self.line(f"{length} -= 1")
        else:
            self.run.append((code, length))
            self.flush()
        return length

    def _sized(self, slot: Slot, kind: Kind, target: str, nullable: bool) -> None:
        if kind.name == "string":
            length = self._length("h", "long_string_length")
            made = 'str(buffer[at:end], "utf-8")'
        else:
            length = self._length("i", "unsigned_varint_at")
            made = "view[at:end]" if kind.name == "records" else "bytes(buffer[at:end])"
        with self.block(f"if {length} >= 0:"):
            self.line(f"end = at + {length}")
            with self.block("if end > limit:"):
                self.line(f"raise Malformed({slot.label + ' is cut short'!r})")
            self.line(f"{target} = {made}")
            self.line("at = end")
        self._null(slot, length, target, nullable)

    def _null(self, slot: Slot, length: str, target: str, nullable: bool) -> None:
        if nullable:
            with self.block(f"elif {length} == -1:"):
                self.line(f"{target} = None")
        with self.block("else:"):
            self.line(f"raise Malformed({slot.label + ' has length '!r} + str({length}))")

    def _array(self, slot: Slot, kind: Kind, target: str, nullable: bool) -> None:
        element = kind.element
        assert element is not None
        length = self._length("i", "unsigned_varint_at")
        smallest = smallest_size(element, self.version, self.flexible)
        with self.block(f"if {length} >= 0:"):
            with self.block(f"if {length} * {smallest} > limit - at:"):
                self.line(f"raise Malformed({slot.label + ' counts more than there is'!r})")
            if element.name == "fixed":
                self._fixed_array(element, target, length)
            else:
                items = self.fresh("items")
                self.line(f"{target} = {items} = []")
                with self.block(f"for _ in range({length}):"):
                    if element.part is not None:
                        item = self.part(element.part)
                    else:
                        item = self.fresh("item")
                        self.value(slot, element, item, False)
                    self.flush()
                    self.line(f"{items}.append({item})")
                    self.pause()
        self._null(slot, length, target, nullable)

    def _fixed_array(self, element: Kind, target: str, length: str) -> None:
        unpackers = self.bind("unpackers", _array_unpackers(element.code))
        size = SIZES[element.code]
        if not self.in_steps:
            self.line(f"{target} = list({unpackers}[{length}](buffer, at))")
            self.line(f"at += {length} * {size}")
            return
        items, count = self.fresh("items"), self.fresh("n")
        self.line(f"{target} = {items} = []")
        with self.block(f"while len({items}) < {length}:"):
            self.line(f"{count} = min({length} - len({items}), {ELEMENTS_IN_A_STEP})")
            self.line(f"{items}.extend({unpackers}[{count}](buffer, at))")
            self.line(f"at += {count} * {size}")
            self.pause()

    def _tags(self, variable: str, tagged: list[Slot]) -> None:
        count = self.fresh("n")
        self.run.append(("B", count))
        self.flush()
        with self.block(f"if {count}:"):
            if not tagged:
                self.line(f"at = skip_tags(buffer, at, {count}, limit)")
                return
            tag, stop = self.fresh("tag"), self.fresh("stop")
            with self.block(f"if {count} > 127:"):
                self.line(f"{count}, at = unsigned_varint_at(buffer, at - 1)")
            with self.block(f"for _ in range({count}):"):
                self.line(f"{tag}, at = unsigned_varint_at(buffer, at)")
                self.line(f"{stop}, at = unsigned_varint_at(buffer, at)")
                self.line(f"{stop} += at")
                with self.block(f"if {stop} > limit:"):
                    self.line("raise Malformed('a tagged field is cut short')")
                word = "if"
                for slot in tagged:
                    with self.block(f"{word} {tag} == {slot.field.tag}:"):
                        target = f"{variable}.{slot.name}"
                        self.value(slot, slot.kind, target, self._nullable(slot), tagged=True)
                        self.flush()
                    word = "elif"
                with self.block("else:"):
                    self.line(f"at = {stop}")
                with self.block(f"if at != {stop}:"):
                    self.line("raise Malformed('a tagged field has another size than it says')")


class _EncoderSource(_Source):
    """Source of `encode(message, out)`, where out takes the pieces in order.

    An entry of the run whose code starts with "*" is a whole array of fixed elements; its
    expression names the variable that holds it.
    """

    def __init__(self, version: int, flexible: bool, in_steps: bool = False) -> None:
        super().__init__(version, flexible, in_steps)
        self.out = "out"
        self.names.update(
            Unencodable=UnencodableMessage,
            BYTE=BYTE,
            long_string_prefix=long_string_prefix,
            pack_elements=pack_elements,
            unsigned_varint=unsigned_varint,
            tagged_section=tagged_section,
        )

    def flush(self) -> None:
        if self.run:
            self.line(f"{self.out}({self._packed(self.run)})")
            self.run = []

    def _packed(self, run: list[tuple[str, str]]) -> str:
        """An expression for the bytes of a run."""
        codes = [code for code, _ in run]
        arguments = [value for _, value in run]
        if not any(code.startswith("*") for code in codes):
            if codes == ["B"]:
                return f"BYTE[{arguments[0]}]"
            pack = self.bind("pack", _struct(codes))
            self.names[pack + "_all"] = self.names[pack].pack
            return f"{pack}_all({', '.join(arguments)})"
        # The layout depends on how many elements the arrays have: one struct per combination.
        shapes = self.bind("shapes", Shapes(tuple(codes), self.flexible))
        counts = [f"len({value})" for code, value in run if code.startswith("*")]
        key = counts[0] if len(counts) == 1 else f"({', '.join(counts)})"
        extra = " + 1" if self.flexible else ""
        spread = [
            f"len({value}){extra}, *{value}" if code.startswith("*") else value
            for code, value in run
        ]
        return f"{shapes}[{key}]({', '.join(spread)})"

    def _flush_with_length(self, code: str, length: str, long: str) -> None:
        """Emits the run with a length at its end."""
        if not self.flexible:
            self.run.append((code, length))
            self.flush()
            return
        if any(each.startswith("*") for each, _ in self.run):
            self.flush()
        without = list(self.run)
        with_length = self._packed([*self.run, ("B", length)])
        self.run = []
        if not without:
            self.line(f"{self.out}({with_length} if {length} < 128 else {long}({length}))")
            return
        with self.block(f"if {length} < 128:"):
            self.line(f"{self.out}({with_length})")
        with self.block("else:"):
            self.line(f"{self.out}({self._packed(without)})")
            self.line(f"{self.out}({long}({length}))")

    def part(self, part: type[Part], variable: str) -> None:
        tagged: list[Slot] = []
        for slot in slots_of(part):
            value = f"{variable}.{slot.name}"
            if slot.tagged(self.version):
                tagged.append(slot)
            elif slot.present(self.version):
                self.value(slot.kind, value, slot.null_allowed(self.version))
            elif not slot.field.ignorable:
                with self.block(f"if {self._differs(slot, value)}:"):
                    text = f"{slot.label} does not exist in version {self.version}"
                    self.line(f"raise Unencodable({text!r})")
        if self.flexible:
            self._tags(tagged, variable)

    def _differs(self, slot: Slot, value: str) -> str:
        """A condition: the field holds something else than its default."""
        default = slot.field.default
        if default is None:
            return f"{value} is not None"
        if default is EMPTY:
            if slot.kind.part is None:
                # A null array differs from the empty one where null can be told.
                return f"({value} is None or {value})" if slot.nullable else value
            return f"{value} != {self.bind('Part', slot.kind.part)}()"
        return f"{value} != {default!r}"

    def value(self, kind: Kind, value: str, nullable: bool, tagged: bool = False) -> None:
        if kind.name == "fixed":
            self.run.append((kind.code, value))
        elif kind.name == "part":
            self._part_value(kind, value, nullable, tagged)
        elif kind.name == "array":
            self._array(kind, value, nullable)
        else:
            self._sized(kind, value, nullable)

    def _part_value(self, kind: Kind, value: str, nullable: bool, tagged: bool) -> None:
        assert kind.part is not None
        variable = self.fresh("m")
        self.line(f"{variable} = {value}")
        if not nullable:
            self.part(kind.part, variable)
            return
        self.flush()
        with self.block(f"if {variable} is None:"):
            self.line(f"{self.out}(BYTE[{0 if tagged else 255}])")
        with self.block("else:"):
            self.run.append(("b", "1"))
            self.part(kind.part, variable)
            self.flush()

    def _sized(self, kind: Kind, value: str, nullable: bool) -> None:
        data, length = self.fresh("data"), self.fresh("n")
        made = f"{value}.encode()" if kind.name == "string" else value
        extra = " + 1" if self.flexible else ""
        if nullable:
            with self.block(f"if {value} is None:"):
                self.line(f"{data} = b''")
                self.line(f"{length} = {0 if self.flexible else -1}")
            with self.block("else:"):
                self.line(f"{data} = {made}")
                self.line(f"{length} = len({data}){extra}")
        else:
            self.line(f"{data} = {made}")
            self.line(f"{length} = len({data}){extra}")
        if kind.name == "string":
            self._flush_with_length("h", length, "long_string_prefix")
        else:
            self._flush_with_length("i", length, "unsigned_varint")
        self.line(f"{self.out}({data})")

    def _array(self, kind: Kind, value: str, nullable: bool) -> None:
        element = kind.element
        assert element is not None
        items = self.fresh("items")
        self.line(f"{items} = {value}")
        if nullable:
            self.flush()
            with self.block(f"if {items} is None:"):
                null = "BYTE[0]" if self.flexible else repr(b"\xff\xff\xff\xff")
                self.line(f"{self.out}({null})")
            with self.block("else:"):
                self._elements(element, items)
                self.flush()
        else:
            self._elements(element, items)

    def _elements(self, element: Kind, items: str) -> None:
        if element.name == "fixed" and not self.in_steps:
            self.run.append(("*" + element.code, items))
            return
        length = self.fresh("n")
        self.line(f"{length} = len({items}){' + 1' if self.flexible else ''}")
        self._flush_with_length("i", length, "unsigned_varint")
        if element.name == "fixed":
            first = self.fresh("first")
            with self.block(f"for {first} in range(0, len({items}), {ELEMENTS_IN_A_STEP}):"):
                some = f"{items}[{first}:{first} + {ELEMENTS_IN_A_STEP}]"
                self.line(f"{self.out}(pack_elements({element.code!r}, {some}))")
                self.pause()
            return
        item = self.fresh("m")
        with self.block(f"for {item} in {items}:"):
            before = len(self.lines)
            if element.part is not None:
                self.part(element.part, item)
            else:
                self.value(element, item, False)
            self.flush()
            self.pause()
            if len(self.lines) == before:
                self.line("pass")

    def _tags(self, tagged: list[Slot], variable: str) -> None:
        if not tagged:
            self.run.append(("B", "0"))
            return
        self.flush()
        out = self.out
        conditions = [self._differs(slot, f"{variable}.{slot.name}") for slot in tagged]
        tags = self.fresh("tags")
        with self.block(f"if {' or '.join(conditions)}:"):
            self.line(f"{tags} = []")
            for slot, condition in sorted(
                zip(tagged, conditions, strict=True), key=lambda each: each[0].field.tag or 0
            ):
                with self.block(f"if {condition}:"):
                    pieces = self.fresh("pieces")
                    self.out = f"{pieces}.append"
                    self.line(f"{pieces} = []")
                    value = f"{variable}.{slot.name}"
                    self.value(slot.kind, value, slot.null_allowed(self.version), tagged=True)
                    self.flush()
                    self.line(f"{tags}.append(({slot.field.tag}, {pieces}))")
            self.out = out
            self.line(f"{out}(tagged_section({tags}))")
        with self.block("else:"):
            self.line(f"{out}(BYTE[0])")


_unpackers: Final[dict[str, ArrayUnpackers]] = {}


def _array_unpackers(code: str) -> ArrayUnpackers:
    table = _unpackers.get(code)
    if table is None:
        table = _unpackers[code] = ArrayUnpackers(code)
    return table


def _check_version(cls: type[Message], version: int) -> None:
    first, last = cls.versions
    if not first <= version <= last:
        raise ValueError(f"{cls.__name__} has versions {first} to {last}, not {version}")


def install_decoder(cls: type[Message], version: int) -> Decoder:
    """Generates the decoder of one version and leaves it in the class."""
    decoder: Decoder = _decoder(cls, version, in_steps=False)
    cls.decoders[version] = decoder
    return decoder


def _decoder(cls: type[Message], version: int, in_steps: bool) -> Any:
    _check_version(cls, version)
    source = _DecoderSource(version, version >= cls.flexible_since, in_steps)
    source.pause()
    source.line("limit = len(buffer)")
    if _has_records(cls):
        source.line("view = memoryview(buffer)")
    variable = source.part(cls)
    source.flush()
    source.line(f"return {variable}, at")
    name = f"decode_{cls.__name__}_v{version}"
    return source.compile(name + "_in_steps" if in_steps else name, "buffer, at")


def install_encoder(cls: type[Message], version: int) -> Encoder:
    """Generates the encoder of one version and leaves it in the class."""
    encoder: Encoder = _encoder(cls, version, in_steps=False)
    cls.encoders[version] = encoder
    return encoder


def _encoder(cls: type[Message], version: int, in_steps: bool) -> Any:
    _check_version(cls, version)
    source = _EncoderSource(version, version >= cls.flexible_since, in_steps)
    source.pause()
    source.part(cls, "message")
    source.flush()
    source.line("return None")
    name = f"encode_{cls.__name__}_v{version}"
    return source.compile(name + "_in_steps" if in_steps else name, "message, out")


StepDecoder = Callable[[Any, int], Generator[None, None, tuple[Any, int]]]
StepEncoder = Callable[[Any, Callable[[Any], None]], Generator[None, None, None]]
_step_decoders: Final[dict[tuple[type[Message], int], StepDecoder]] = {}
_step_encoders: Final[dict[tuple[type[Message], int], StepEncoder]] = {}


def step_decoder(cls: type[Message], version: int) -> StepDecoder:
    """As `Message.decoder`, with a pause after each element of an array."""
    decoder = _step_decoders.get((cls, version))
    if decoder is None:
        decoder = _step_decoders[cls, version] = _decoder(cls, version, in_steps=True)
    return decoder


def step_encoder(cls: type[Message], version: int) -> StepEncoder:
    """As `Message.encoder`, with a pause after each element of an array."""
    encoder = _step_encoders.get((cls, version))
    if encoder is None:
        encoder = _step_encoders[cls, version] = _encoder(cls, version, in_steps=True)
    return encoder


def _has_records(part: type[Part]) -> bool:
    for slot in slots_of(part):
        kind = slot.kind.element or slot.kind
        if kind.name == "records" or (kind.part is not None and _has_records(kind.part)):
            return True
    return False


def install_constructor(cls: type[Part]) -> Callable[..., None]:
    """Generates `__init__`, with a keyword per field, and puts it in the class."""
    source = _Source(0, False)
    source.names["EMPTY"] = EMPTY
    parameters = ["self"]
    if cls.declared:
        parameters.append("*")
    for slot in slots_of(cls):
        default = slot.field.default
        if default is EMPTY:
            part = source.bind("Part", slot.kind.part) if slot.kind.part is not None else ""
            made = default_source(slot, part)
            source.line(f"self.{slot.name} = {made} if {slot.name} is EMPTY else {slot.name}")
        else:
            source.line(f"self.{slot.name} = {slot.name}")
        parameters.append(f"{slot.name}={default!r}")
    source.line("return None")
    constructor: Callable[..., None] = source.compile("__init__", ", ".join(parameters))
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    type.__setattr__(cls, "__init__", constructor)
    return constructor
