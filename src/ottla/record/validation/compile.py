"""Compile the kernels: `python -m ottla.record.validation.compile` writes machine code to its output.

That is, for each, the size and the code of one function that needs nothing else: no library, no table of
constants, no relocation. So a broker has only to put it into memory that may be executed
(`machine_code`); numba and LLVM, which take 0.3 s and 130 MB, stay in this process.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import llvmlite.binding as llvm
from numba import njit

from ottla.record.validation import kernel

_NAME = "kernel"
_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",  # no exceptions
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    "_nrt": False,  # nothing to count references of
}
# Sections that a linker reads, or nobody; whatever else is not empty would be missed at run time.
_HARMLESS = (
    ".note",
    ".comment",
    ".strtab",
    ".symtab",
    ".shstrtab",
    ".eh_frame",
    "__compact_unwind",
)


def machine_code() -> bytes:
    """The compiled kernels for this processor, each with its size before it."""
    codes = [
        _compiled(kernel.walk, kernel.WALK_SIGNATURE),
        _compiled(kernel.accept, kernel.ACCEPT_SIGNATURE),
    ]
    return b"".join(len(code).to_bytes(4, "big") + code for code in codes)


def _compiled(function: Any, its_signature: Any) -> bytes:
    """One of them; RuntimeError if it does not stand alone."""
    dispatcher: Any = njit(its_signature, **_OPTIONS)(function)
    (signature,) = dispatcher.signatures
    name = dispatcher.overloads[signature].fndesc.llvm_func_name
    module: Any = llvm.parse_assembly(dispatcher.inspect_llvm(signature))
    for other in module.functions:
        if other.name != name and not other.is_declaration:
            other.linkage = "internal"
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"
    module.get_function(name).name = _NAME
    machine = llvm.Target.from_default_triple().create_target_machine(
        # For any processor of this kind, not for this one: homes with their caches move about.
        opt=3,
        reloc="pic",
        codemodel="small",
    )
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    needed = [other.name for other in module.functions if other.name != _NAME]
    needed += [variable.name for variable in module.global_variables]
    # Names of LLVM's own (intrinsics) are compiled to instructions.
    if not all(name.startswith("llvm.") for name in needed):
        raise RuntimeError(f"the compiled kernel refers to {', '.join(needed)}")
    return _only_code(machine.emit_object(module))


def _only_code(object_file: bytes) -> bytes:
    code = []
    for section in llvm.ObjectFileRef.from_data(object_file).sections():
        if section.is_text():
            if section.size():
                code.append(section.data())
        elif section.size() and not section.name().decode().startswith(_HARMLESS):
            raise RuntimeError(f"the compiled kernel needs a section {section.name()!r}")
    if len(code) != 1:
        raise RuntimeError(f"the compiled kernel has {len(code)} sections of code")
    return bytes(code[0])


def main() -> None:
    os.nice(10)  # nobody waits for it
    sys.stdout.buffer.write(machine_code())


if __name__ == "__main__":
    main()
