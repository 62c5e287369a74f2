"""Whether a kernel may start while the kernel before it still writes: read from its machine code.

A kernel of programmatic dependent launch must not access memory before ``griddepcontrol.wait``. The sources
say so, but a compiler may move a load up, and no test sees a race that rarely happens. So every build is
checked: no path from the entry of a kernel reaches an access of global memory without passing the wait.

An instruction of sm_90 and later has 16 bytes. The low 9 bits name the operation, 3 bits its form; bits 12 to
15 are its guard, a predicate. The numbers were read from the disassembly of what NVRTC 13.0 makes of PTX.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Collection, Iterator

from kernels.compiler.cubin import code_sections

_WAIT = 0x02E
_BRANCH, _EXIT, _CALL, _RETURN = 0x147, 0x14D, 0x144, 0x150
_SET_BARRIER, _MEET = 0x145, 0x141
_COMPUTED = (0x143, 0x149, 0x14A, 0x14C, 0x158, 0x159)  # CALL.ABS, BRX, JMP, JMX, BRXU, JMXU
_BARRIERS, _BYTES = 16, 16
_LOAD = 0x181
_ACCESSES = {
    0x180: "LD",
    _LOAD: "LDG",
    0x185: "ST",
    0x186: "STG",
    0x18A: "ATOM",
    0x18B: "ATOM",
    0x18E: "REDG",
    0x1A2: "ATOM",
    0x1A3: "ATOMG",
    0x1A6: "REDG",
    0x1A8: "ATOMG",
    0x1A9: "ATOMG",
    0x1AE: "LDGSTS",
    0x1B4: "UTMALDG",
    0x1B5: "UTMASTG",
    0x1B6: "UTMAREDG",
    0x1BA: "UBLKCP",
    0x1BB: "UBLKRED",
}
_ALWAYS = 7  # the predicate that is always true
_NON_COHERENT = 4  # in the cache field of a load: ld.global.nc

Instruction = tuple[int, int]
"""Its low and its high 64 bits."""


def why_unordered(cubin: bytes, overlapping: Collection[str] = ()) -> str | None:
    """The reason why a kernel of a cubin must not overlap with the kernel before it, or None.

    Every kernel that waits is checked, and those named in ``overlapping`` also if they do not wait. A
    prefetch into the L2 is no access: it returns no data.

    Raises:
        ArtifactError: not a cubin.
    """
    for section, code in code_sections(cubin).items():
        name = section.removeprefix(".text.")
        instructions = list(struct.iter_unpack("<QQ", code))
        if name not in overlapping and not any(map(_waits, instructions)):
            continue
        early = next(_accesses_before_wait(instructions), None)
        if early:
            return f"{name} accesses memory before griddepcontrol.wait ({early})"
        if any(map(_is_non_coherent, instructions)):
            return f"{name} loads by ld.global.nc what the kernel before may have written"
    return None


def _accesses_before_wait(code: list[Instruction]) -> Iterator[str]:
    """The accesses that are reached from the entry without passing the wait."""
    seen, todo = set[_Thread](), [_Thread(0)]
    while todo:
        thread = todo.pop()
        if thread in seen or thread.at >= len(code):
            continue
        seen.add(thread)
        instruction = code[thread.at]
        if instruction[0] & 0x1FF in _ACCESSES:
            yield _ACCESSES[instruction[0] & 0x1FF]
        if not (_waits(instruction) and _unguarded(instruction)):
            computes_target = instruction[0] & 0x1FF in _COMPUTED
            todo += [thread.moved(at) for at in range(len(code))] if computes_target else []
            todo += thread.after(instruction)


@dataclasses.dataclass(frozen=True, slots=True)
class _Thread:
    """The position of a thread, and where it continues after each convergence barrier."""

    at: int
    targets: tuple[int, ...] = (0,) * _BARRIERS

    def moved(self, at: int) -> _Thread:
        return dataclasses.replace(self, at=at)

    def after(self, instruction: Instruction) -> list[_Thread]:
        """The positions where the thread may be next; when in doubt, too many."""
        low, high = instruction
        operation, following = low & 0x1FF, self.moved(self.at + 1)
        left = [] if _unguarded(instruction) else [following]
        if operation == _SET_BARRIER:
            targets = list(self.targets)
            targets[_barrier(low)] = following.at + (low >> 32) // _BYTES
            return [dataclasses.replace(following, targets=tuple(targets))]
        if operation == _MEET:
            return [*left, self.moved(self.targets[_barrier(low)] or following.at)]
        if operation == _BRANCH:
            return [*left, self.moved(following.at + _distance(low, high))]
        if operation == _CALL:
            return [following, self.moved(following.at + _distance(low, high))]
        return left if operation in (_EXIT, _RETURN) else [following]


def _distance(low: int, high: int) -> int:
    """Instructions from the one after a branch to its target."""
    words = (low >> 16 & 0xFF) | (low >> 34 | (high & 0x3FFFF) << 30) << 8
    return (words - (words >> 55 << 56)) * 4 // _BYTES


def _barrier(low: int) -> int:
    return low >> 16 & 0xF


def _waits(instruction: Instruction) -> bool:
    return instruction[0] & 0x1FF == _WAIT


def _unguarded(instruction: Instruction) -> bool:
    """Whether every thread executes it: its guard, and the condition of a branch or exit, is always true."""
    low, high = instruction
    if low & 0x1FF in (_BRANCH, _EXIT) and (high >> 23 & 0xF != _ALWAYS or low >> 32 & 3):
        return False
    return low >> 12 & 0xF == _ALWAYS


def _is_non_coherent(instruction: Instruction) -> bool:
    low, high = instruction
    return low & 0x1FF == _LOAD and high >> 13 & 0xF == _NON_COHERENT
