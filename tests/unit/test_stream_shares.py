"""Stream-K's shares of k: drawn by hand, and laws that the compiler itself checks."""

from __future__ import annotations

import pytest

from kernels.build import CompileError
from kernels.nvrtc import compile_text

# NOTE: shares.cuh is compiled as constexpr, so that static_assert can call it.
_SOURCE = """
#define __forceinline__ constexpr
#include "wgmma_ws/shares.cuh"
__device__ constexpr bool lawful(int steps, int most, int least_share) {
    const Shares shares = Shares::of(steps, most, least_share);
    if (shares.count < 1 || shares.count > most || shares.first(0) != 0) return false;
    if (shares.count > 1 && shares.least < least_share) return false;
    if (shares.first(shares.count) != steps) return false;
    for (int share = 0; share < shares.count; ++share) {
        const int size = shares.first(share + 1) - shares.first(share);
        if (size != shares.least && size != shares.least + 1) return false;
        for (int step = shares.first(share); step < shares.first(share + 1); ++step)
            if (shares.owner(step) != share) return false;
    }
    return true;
}
%s
extern "C" __global__ void nothing() {}
"""


def compiles(*claims: str) -> None:
    text = "\n".join(f'static_assert({claim}, "");' for claim in claims)
    compile_text(_SOURCE % text, "sm_90a", entry="nothing")


def test_shares_by_hand() -> None:
    # 23 k tiles for 4 blocks: 6, 6, 6, 5. For 8 blocks 4 each would be more than there are: 5 shares.
    compiles(
        "Shares::of(23, 4, 4).first(1) == 6 && Shares::of(23, 4, 4).first(3) == 18",
        "Shares::of(23, 4, 4).owner(17) == 2 && Shares::of(23, 4, 4).owner(18) == 3",
        "Shares::of(23, 8, 4).count == 5",
        # Fewer than a share: one block has all; none: an empty share.
        "Shares::of(3, 132, 4).count == 1 && Shares::of(3, 132, 4).first(1) == 3",
        "Shares::of(0, 132, 4).first(1) == 0",
    )


def test_the_largest_problem_does_not_overflow() -> None:
    # 263 tiles of 2^28 / 64 k tiles for 132 blocks.
    steps = 263 * 2**22
    compiles(
        f"Shares::of({steps}, 132, 4).first(132) == {steps}",
        f"Shares::of({steps}, 132, 4).owner({steps - 1}) == 131",
    )


@pytest.mark.parametrize("most", [1, 2, 33, 66, 132])
def test_every_step_has_one_owner(most: int) -> None:
    compiles(*(f"lawful({steps}, {most}, 4)" for steps in (0, 1, 3, 4, 5, 131, 132, 529, 1000, 2113)))


def test_a_false_claim_is_refused() -> None:
    with pytest.raises(CompileError, match="static assertion failed"):
        compiles("Shares::of(23, 4, 4).owner(18) == 2")
