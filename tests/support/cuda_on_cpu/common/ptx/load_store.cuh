// Stands in for kernels/common/ptx/load_store.cuh.
#pragma once
inline unsigned smem_address(const void* pointer) { return unsigned(static_cast<const char*>(pointer) - smem); }
