// Stands in for kernels/common/ptx/load_store.cuh.
#pragma once
inline const char* pinned(const char* address) { return address; }
inline int pinned(int number) { return number; }
inline unsigned smem_address(const void* pointer) { return unsigned(static_cast<const char*>(pointer) - smem); }
inline unsigned short load_global_16(const void* from, bool wanted) {
    return wanted ? *static_cast<const unsigned short*>(from) : 0;
}
