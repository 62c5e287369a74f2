// Runs a kernel on the CPU: KERNEL (a file) with the entry ENTRY, CTA after CTA, the threads of each as fibers that change places
// where they meet. A seed draws the order in which warps run between two barriers, and whether cp.async copies at once or at
// the last moment, so that a missing barrier or wait gives a wrong result.
#include "cuda.h"
#include <deque>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>
#include <ucontext.h>

#include KERNEL

thread_local Index threadIdx, blockIdx, gridDim, blockDim;
constexpr int smem_bytes = 256 << 10;
thread_local char smem[smem_bytes] __align__(128);

namespace {
struct Copy { unsigned to; const void* from; int bytes; bool inside; };
struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    std::deque<std::vector<Copy>> groups{1}; // the last one is open
    bool waits = false, ended = false;
};
ucontext_t scheduler;
std::vector<std::unique_ptr<Fiber>> fibers;
std::function<void()> body;
int current, cta_arrived, cta_alive;
struct Warp { Lane lanes[32]; int arrived; };
std::vector<Warp> warps;
bool copies_late, misuse;
struct Region { const char *first, *end; } operands[2];

bool inside_operand(const void* from, int bytes) {
    const char* first = static_cast<const char*>(from);
    return std::any_of(operands, operands + 2, [&](Region x) { return first >= x.first && first + bytes <= x.end; });
}
std::mt19937 source;

void make(const Copy& copy) {
    if (copy.to % copy.bytes || copy.to + copy.bytes > smem_bytes) misuse = true;
    if (copy.inside && reinterpret_cast<std::uintptr_t>(copy.from) % copy.bytes) misuse = true;
    if (copy.inside && !inside_operand(copy.from, copy.bytes)) misuse = true;
    if (copy.inside && inside_operand(copy.from, copy.bytes))
        std::memcpy(smem + copy.to, copy.from, copy.bytes);
    else
        std::memset(smem + copy.to, 0, copy.bytes);
}
void wait() {
    fibers[current]->waits = true;
    swapcontext(&fibers[current]->context, &scheduler);
}
void run_fiber() {
    body();
    fibers[current]->ended = true;
    swapcontext(&fibers[current]->context, &scheduler);
}
void run_cta(int threads, int stack_bytes) {
    for (int i = 0; i < threads; ++i) {
        Fiber& fiber = *fibers[i];
        fiber.waits = fiber.ended = false;
        fiber.groups.assign(1, {});
        fiber.stack.resize(stack_bytes);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, run_fiber, 0);
    }
    cta_arrived = 0;
    warps.assign(threads / 32, {});
    std::vector<int> order(threads / 32);
    for (int i = 0; i < threads / 32; ++i) order[i] = i;
    for (bool progress = true; progress;) {
        progress = false;
        std::shuffle(order.begin(), order.end(), source);
        for (int warp : order)
            for (int again = 0; again < 1 + int(source() % 8); ++again)
                for (int lane = 0; lane < 32; ++lane) {
                    current = warp * 32 + lane;
                    if (fibers[current]->waits || fibers[current]->ended) continue;
                    progress = true;
                    threadIdx = {current, 0, 0};
                    swapcontext(&scheduler, &fibers[current]->context);
                }
    }
    for (const auto& fiber : fibers) {
        if (!fiber->ended) throw std::runtime_error("deadlock");
        for (const auto& group : fiber->groups) misuse |= !group.empty();
    }
}
} // namespace

void cta_barrier() {
    if (++cta_arrived == int(fibers.size())) {
        cta_arrived = 0;
        for (auto& fiber : fibers) fiber->waits = false;
        return;
    }
    wait();
}
void warp_instruction(const Lane& lane, const std::function<void(const Lane (&)[32])>& act) {
    Warp& warp = warps[current / 32];
    warp.lanes[current % 32] = lane;
    if (++warp.arrived < 32) return wait();
    warp.arrived = 0;
    act(warp.lanes);
    for (int i = 0; i < 32; ++i) fibers[current / 32 * 32 + i]->waits = false;
}
void __syncwarp() {
    warp_instruction({}, [](const Lane(&)[32]) {});
}
void async_copy(unsigned to, const void* from, int bytes, bool inside) {
    const Copy copy{to, from, bytes, inside};
    if (!copies_late) make(copy);
    fibers[current]->groups.back().push_back(copy);
}
void async_commit() { fibers[current]->groups.emplace_back(); }
void async_wait(int pending) {
    auto& groups = fibers[current]->groups;
    for (; int(groups.size()) - 1 > pending; groups.pop_front())
        if (copies_late)
            for (const Copy& copy : groups.front()) make(copy);
}

namespace {
// Runs all CTAs of `body`. Returns as `run`.
int run_grid(const int* grid, int threads, unsigned seed) {
    source.seed(seed);
    copies_late = seed % 2;
    misuse = false;
    fibers.clear();
    for (int i = 0; i < threads; ++i) fibers.push_back(std::make_unique<Fiber>());
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    try {
        for (int z = 0; z < grid[2]; ++z)
            for (int y = 0; y < grid[1]; ++y)
                for (int x = 0; x < grid[0]; ++x) {
                    blockIdx = {x, y, z};
                    std::memset(smem, 0xFF, smem_bytes); // NaN, or the integer -1
                    run_cta(threads, 256 << 10);
                }
    } catch (const std::runtime_error&) {
        return 2;
    }
    return misuse;
}
} // namespace

#if REPACK_A || REPACK_B
// Launches a repack, of rows along k or not.
extern "C" void repack(int of_k, const void* from, void* to, int rows, int bytes, const long long* strides, const int* grid) {
    body = [=] {
        (of_k ? repack_rows_of_k : repack_rows)(static_cast<const unsigned char*>(from), static_cast<unsigned char*>(to), rows,
                                                bytes, strides[0], strides[1], strides[2], strides[3]);
    };
    run_grid(grid, 256, 0);
}
#endif

// Launches the kernel. Returns 0, 1 for a copy that is misaligned, out of bounds or never waited for, 2 for a deadlock.
extern "C" int run(const void* a, const void* b, const void* c, void* d, const void* bias, void* workspace, int m, int n, int k,
                   const long long* strides, double alpha, double beta, const int* grid, int threads, unsigned seed) {
    const char *first_a = static_cast<const char*>(a), *first_b = static_cast<const char*>(b);
    operands[0] = {first_a, first_a + grid[2] * strides[4] * sizeof(In)};
    operands[1] = {first_b, first_b + grid[2] * strides[5] * sizeof(In)};
    body = [&] {
        ENTRY(static_cast<const In*>(a), static_cast<const In*>(b), static_cast<const Out*>(c), static_cast<Out*>(d),
              static_cast<const Out*>(bias), workspace, m, n, k, strides[0], strides[1], strides[2], strides[3], strides[4],
              strides[5], strides[6], strides[7], ElementAccumulator(alpha), ElementAccumulator(beta));
    };
    return run_grid(grid, threads, seed);
}
