// Stands in for kernels/common/ptx/cp_async.cuh.
#pragma once
#include "common/ptx/load_store.cuh"

template <int BYTES> void cp_async(unsigned to, const void* global, bool inside) { async_copy(to, global, BYTES, inside); }
inline void cp_async_commit() { async_commit(); }
template <int PENDING> void cp_async_wait() { async_wait(PENDING); }
