"""Memory that ends: at the nth instruction of the package that may ask for some.

A call, an operator, a list: each may be what finds no memory, and what it would have done is not
done then. Where a `with` is left nothing is allocated, and nothing fails; small tuples Python has
at hand; Numba's own work is the compiler's. Finalizers are left alone: what they raise Python drops
and reports elsewhere, and a collection runs those of any other store, wherever it comes. Of the
thread alone that enters it.
"""

import dis
import gc
import sys
import weakref
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import embstore

_ROOT = str(Path(embstore.__file__).parent)
_COMPILER = str(Path(_ROOT) / "arithmetic" / "jit.py")
_FINALIZE = weakref.finalize.__call__.__code__
_ALLOCATE = {
    *("CALL", "CALL_FUNCTION_EX", "BINARY_OP", "BINARY_SUBSCR", "STORE_SUBSCR", "COMPARE_OP"),
    *("BUILD_LIST", "BUILD_MAP", "BUILD_STRING", "BUILD_SLICE", "LIST_APPEND", "MAKE_FUNCTION"),
}


class Starving:
    """Raises MemoryError at the nth such instruction inside its block, once."""

    def __init__(self, nth: int) -> None:
        self.where = ""
        """Where it was; empty: it did not come so far."""
        self._left = nth

    def __enter__(self) -> "Starving":
        gc.disable()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        gc.enable()

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        is_ours = code.co_filename.startswith(_ROOT) and code.co_filename != _COMPILER
        is_finalizer = frame.f_back is not None and frame.f_back.f_code is _FINALIZE
        if not is_ours or is_finalizer or code.co_name == "__exit__":
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode" and frame.f_lasti in _allocating(frame.f_code):
            self._left -= 1
            if self._left == 0:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise MemoryError(f"starved at {self.where}")
        return self._stepped


@cache
def _allocating(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions that may ask for memory."""
    instructions = list(dis.get_instructions(code))
    return frozenset(
        one.offset
        for place, one in enumerate(instructions)
        if one.opname in _ALLOCATE and not _leaves_a_block(instructions, place)
    )


def _leaves_a_block(instructions: list[dis.Instruction], place: int) -> bool:
    """Tell whether a call is that of `__exit__` with three times None."""
    before = instructions[max(place - 4, 0) : place - 1]
    is_none = [one.opname == "LOAD_CONST" and one.argval is None for one in before]
    return instructions[place].opname == "CALL" and len(is_none) == 3 and all(is_none)
