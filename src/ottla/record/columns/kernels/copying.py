"""Moving bytes, and fetching them from memory: a part of `decoding`, whose rules hold here."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, register_jitable


@intrinsic
def _memcpy(
    typing_context: Any, target: Any, target_at: Any, source: Any, source_at: Any, length: Any
) -> Any:
    """`length` bytes between two arrays that do not overlap, by the C library's routine."""
    del typing_context, target_at, source_at, length
    signature = types.void(target, types.intp, source, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, target_at, source, source_at, length = arguments
        target_array = context.make_array(signature.args[0])(context, builder, target)
        source_array = context.make_array(signature.args[2])(context, builder, source)
        to = builder.gep(target_array.data, [target_at])
        from_ = builder.gep(source_array.data, [source_at])
        cgutils.raw_memcpy(builder, to, from_, length, 1)  # type: ignore[no-untyped-call]
        return ir.Constant(ir.IntType(8).as_pointer(), None)

    return signature, generate


@intrinsic
def _prefetch(typing_context: Any, data: Any, at: Any) -> Any:
    """Have the processor fetch what stands there from memory; that neither waits nor fails."""
    del typing_context, at
    signature = types.void(data, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, at = arguments
        array = context.make_array(signature.args[0])(context, builder, data)
        number = ir.IntType(32)
        place = ir.IntType(8).as_pointer()
        function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module,
            ir.FunctionType(ir.VoidType(), [place, number, number, number]),
            "llvm.prefetch.p0i8",
        )
        # To be read, to be kept in all caches, and data.
        builder.call(function, [builder.gep(array.data, [at]), number(0), number(3), number(1)])
        return ir.Constant(place, None)

    return signature, generate


# Intrinsics are called without the typing context that their definitions take.
_move: Any = _memcpy
fetch: Any = _prefetch


@register_jitable(forceinline=True)
def copy(target: Any, target_at: int, source: Any, source_at: int, length: int) -> None:
    """Copy `length` bytes, if both ranges lie in their arrays."""
    if (
        length < 0
        or target_at < 0
        or source_at < 0
        or target_at + length > len(target)
        or source_at + length > len(source)
    ):
        raise IndexError("a copy beyond a buffer")
    _move(target, target_at, source, source_at, length)
