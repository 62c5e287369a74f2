// Stands in for kernels/common/ptx/control.cuh: launches do not overlap.
#pragma once
inline void release_next_kernel() {}
inline void await_previous_kernel() {}
