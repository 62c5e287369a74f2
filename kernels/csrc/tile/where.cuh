// Tells the host on which multiprocessors the blocks of a launch run; see client/tilewright/launch/block_order.py.
#pragma once
#include "ptx/multiprocessor.cuh"

// The place of each cluster in the list of work.
struct BlockOrder { unsigned char place[256]; };

extern "C" __global__ void where_blocks_run(unsigned* multiprocessors) {
    if (threadIdx.x == 0) multiprocessors[blockIdx.x] = multiprocessor();
    // NOTE: all blocks must run at once, else a multiprocessor takes two, one after the other.
    for (const long long start = clock64(); clock64() - start < 30000;) {}
}
