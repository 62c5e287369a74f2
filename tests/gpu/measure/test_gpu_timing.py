"""Timing on the GPU: a kernel whose time is known, by the GPU's own nanosecond timer."""

from __future__ import annotations

import pytest

from kernels.common.cuda import target_of
from kernels.compiler.nvrtc import compile_text
from tilewright.launch.cuda import BareKernel
from tuner.measure.stats import median
from tuner.measure.timing import launches_per_sample, of_samples, sampler, take

SPIN = """
extern "C" __global__ void spin() {
    unsigned long long start, now;
    asm volatile("mov.u64 %%0, %%globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %%0, %%globaltimer;" : "=l"(now)); } while (now - start < %d);
}
"""


@pytest.mark.alone
@pytest.mark.parametrize("spin_us", [500, 3000])
def test_a_kernel_of_known_time_is_timed_within_1_percent(device, spin_us: int) -> None:
    built = compile_text(SPIN % (spin_us * 1000), target_of(device.spec.arch), entry="spin")
    launches = [BareKernel(built.binary, "spin")]
    sample = sampler(device, of_samples(launches, launches_per_sample(device, launches)))
    samples, _ = take(sample, None)
    assert median(samples) == pytest.approx(spin_us, rel=0.01)
