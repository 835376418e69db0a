// The subset of CUDA that the kernels use, for a host compiler: g++ builds shim, kernels and
// launchers as one text, and each library has a state of its own, which one thread uses at a time.
//
// A launch runs its blocks one after the other, in an order that its seed gives, and the threads of
// a block in one of two ways. **Plain**: each thread to its end before the next begins, in an order
// shuffled anew for each block; this is for kernels without barriers and warp collectives.
// **Fibers**: every thread has a stack, and gives way where it waits for others and, by chance, at
// every atomic; the next to run is drawn from those that can. What a thread reads before an atomic
// may therefore be old after it, as on a device.
//
// Nothing takes the process down if it can be helped: a barrier that not all threads reach, a
// collective whose lanes stand at different places, and what the compiler's checks find (alignment,
// null pointers, array bounds, overflows: -fsanitize) end the launch with a message. Shared memory
// is filled with garbage before each block; it lies in a section of its own, which the linker
// bounds.

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#if !defined(__x86_64__)
#define SHIM_UCONTEXT
#endif
#ifdef SHIM_UCONTEXT
#include <ucontext.h>
#endif

#include <utility>

#define __global__
#define __device__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("shim_shared")))

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) longlong2 { long long x, y; };

static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}
static inline longlong2 make_longlong2(long long x, long long y) { return {x, y}; }

namespace shim {

struct Index { unsigned x; };

constexpr unsigned THREADS = 256;
constexpr unsigned LANES = 32;
constexpr unsigned WARPS = THREADS / LANES;
constexpr size_t STACK_BYTES = 128 << 10;
constexpr size_t GUARD_BYTES = 4 << 10;
constexpr int GARBAGE = 0xa5;

}  // namespace shim

static shim::Index threadIdx, blockIdx, gridDim;
static const shim::Index blockDim = {shim::THREADS};

extern "C" char __start_shim_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_shim_shared[] __attribute__((weak, visibility("hidden")));

namespace shim {

// Chance (splitmix64)

static unsigned long long chance_state;

static inline unsigned long long chance() {
    unsigned long long z = chance_state += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static inline unsigned chance_below(unsigned bound) {
    return static_cast<unsigned>(((chance() >> 32) * bound) >> 32);
}

static inline void shuffle(unsigned char* lanes) {
    for (unsigned i = 0; i < THREADS; ++i) {
        unsigned j = chance_below(i + 1);
        lanes[i] = lanes[j];
        lanes[j] = static_cast<unsigned char>(i);
    }
}

// Contexts

#ifdef SHIM_UCONTEXT
using Context = ucontext_t;

static inline void switch_to(Context& from, Context& to) { swapcontext(&from, &to); }

static inline void begin_at(Context& context, char* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK_BYTES - GUARD_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
#else
using Context = void*;  // the stack pointer, above what a called function has to keep

// SysV x86-64: rbx, rbp and r12 to r15 outlive a call, and nothing else that kernels change does.
asm(R"(
    .pushsection .text
    .hidden shim_switch
    .globl shim_switch
    .type shim_switch, @function
shim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size shim_switch, . - shim_switch
    .popsection
)");
extern "C" void shim_switch(Context* from, Context to) __attribute__((visibility("hidden")));

static inline void switch_to(Context& from, Context& to) { shim_switch(&from, to); }

static inline void begin_at(Context& context, char* stack, void (*entry)()) {
    // Six registers, the address to return to, and one word: entry finds the stack as after a call.
    void** top = reinterpret_cast<void**>(stack + STACK_BYTES - GUARD_BYTES) - 8;
    memset(top, 0, 8 * sizeof(void*));
    top[6] = reinterpret_cast<void*>(entry);
    context = top;
}
#endif

// The state of a launch

enum State : unsigned char { READY, AT_WARP, AT_BLOCK, ENDED };

struct Warp {
    const char* place;          // where the lanes that have arrived wait
    unsigned arrived;
    unsigned turn;              // 0 or 1: lanes may enter a collective while others leave the last
    unsigned ballots[2];
    unsigned long long values[2][LANES];
};

static char message[1024];      // empty: nothing has gone wrong
static jmp_buf launcher;        // plain: where a failed launch goes on
static bool in_fibers;
static Context outside;         // fibers: the same
static Context contexts[THREADS];
static char* stacks;            // kept for the next launch
static void (*body)();
static State states[THREADS];
static const char* places[THREADS];
static unsigned char ready[THREADS];
static unsigned ready_count, ended_count, block_arrived;
static Warp warps[WARPS];

[[noreturn]] __attribute__((noipa)) static void fail() {
    if (!in_fibers) longjmp(launcher, 1);
    switch_to(contexts[threadIdx.x], outside);
    __builtin_unreachable();
}

[[noreturn]] __attribute__((noipa)) static void fail_at(const char* place, const char* what) {
    snprintf(message, sizeof message, "%s: %s (block %u, thread %u)", place, what, blockIdx.x,
             threadIdx.x);
    fail();
}

static void say_where_threads_stand() {
    int at = snprintf(message, sizeof message, "the threads of block %u have parted:", blockIdx.x);
    bool told[THREADS] = {};
    for (unsigned first = 0; first < THREADS; ++first) {
        if (told[first] || states[first] == READY) continue;
        unsigned count = 0;
        for (unsigned i = first; i < THREADS; ++i) {
            bool same = states[i] == states[first] &&
                        (states[i] == ENDED || !strcmp(places[i], places[first]));
            count += same;
            told[i] |= same;
        }
        const char* place = states[first] == ENDED ? "have ended" : places[first];
        at += snprintf(message + at, sizeof message - at, " %u %s (first: thread %u);", count,
                       place, first);
        if (at >= static_cast<int>(sizeof message)) return;
    }
    message[at - 1] = 0;
}

// Fibers

// Goes to a thread that can run; outside, where none can. Whoever calls this has put itself where
// it will be found again. Not to be inlined: what is cached of memory is not what it was.
__attribute__((noipa)) static void give_way() {
    Context& from = contexts[threadIdx.x];
    if (ready_count == 0) return switch_to(from, outside);
    unsigned drawn = chance_below(ready_count);
    unsigned thread = ready[drawn];
    ready[drawn] = ready[--ready_count];
    if (thread == threadIdx.x) return;
    threadIdx.x = thread;
    switch_to(from, contexts[thread]);
}

static void run_thread() {
    body();
    states[threadIdx.x] = ENDED;
    ++ended_count;
    give_way();
}

static inline void maybe_give_way() {
    if (__builtin_expect(in_fibers, 0) && (chance() >> 63)) {
        ready[ready_count++] = static_cast<unsigned char>(threadIdx.x);
        give_way();
    }
}

static void release(unsigned thread) {
    states[thread] = READY;
    ready[ready_count++] = static_cast<unsigned char>(thread);
}

static void stand_at(const char* place, State state) {
    if (!in_fibers) fail_at(place, "reached by a kernel that is run as a plain one");
    states[threadIdx.x] = state;
    places[threadIdx.x] = place;
}

static void compare(const char* place, const char* with) {
    if (place != with && strcmp(place, with)) {
        say_where_threads_stand();
        fail();
    }
}

__attribute__((noipa)) static void wait_for_block(const char* place) {
    static const char* first;
    stand_at(place, AT_BLOCK);
    if (block_arrived == 0) first = place;
    compare(place, first);
    if (++block_arrived == THREADS) {
        block_arrived = 0;
        for (unsigned thread = 0; thread < THREADS; ++thread) release(thread);
    }
    give_way();
}

// Returns the values of all lanes. They stay until every lane has come to the next collective but
// one, which no lane does before all have read these.
__attribute__((noipa)) static const unsigned long long* exchange(
    const char* place, unsigned mask, unsigned long long value, unsigned* ballot) {
    if (mask != 0xffffffffu) fail_at(place, "the mask is not 0xffffffff");
    Warp& warp = warps[threadIdx.x / LANES];
    unsigned lane = threadIdx.x % LANES, turn = warp.turn;
    stand_at(place, AT_WARP);
    if (warp.arrived == 0) {
        warp.place = place;
        warp.ballots[turn] = 0;
    }
    compare(place, warp.place);
    warp.values[turn][lane] = value;
    if (value) warp.ballots[turn] |= 1u << lane;
    if (++warp.arrived == LANES) {
        warp.arrived = 0;
        warp.turn = turn ^ 1;
        for (unsigned i = 0; i < LANES; ++i) release(threadIdx.x - lane + i);
    }
    give_way();
    *ballot = warp.ballots[turn];
    return warp.values[turn];
}

template <class T>
static inline T shuffle_from(const char* place, unsigned mask, T value, unsigned source) {
    unsigned long long bits = 0;
    unsigned ballot;
    memcpy(&bits, &value, sizeof value);
    bits = exchange(place, mask, bits, &ballot)[source];
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T>
static inline T shuffle_down(const char* place, unsigned mask, T value, unsigned delta) {
    unsigned source = threadIdx.x % LANES + delta;
    return shuffle_from(place, mask, value, source < LANES ? source : threadIdx.x % LANES);
}

template <class T>
static inline T shuffle_of(const char* place, unsigned mask, T value, int source) {
    return shuffle_from(place, mask, value, static_cast<unsigned>(source) % LANES);
}

static inline unsigned ballot(const char* place, unsigned mask, int predicate) {
    unsigned result;
    exchange(place, mask, predicate != 0, &result);
    return result;
}

// Launches

static void run_fibers() {
    unsigned char order[THREADS];
    shuffle(order);
    for (unsigned i = 0; i < THREADS; ++i) {
        states[i] = READY;
        begin_at(contexts[i], stacks + i * STACK_BYTES + GUARD_BYTES, run_thread);
        ready[i] = order[i];
    }
    for (Warp& warp : warps) warp.arrived = warp.turn = 0;
    ready_count = THREADS - 1;
    ended_count = block_arrived = 0;
    threadIdx.x = ready[THREADS - 1];
    switch_to(outside, contexts[threadIdx.x]);
    if (!message[0] && ended_count < THREADS) say_where_threads_stand();
}

static void have_stacks() {
    if (stacks) return;
    void* memory = mmap(nullptr, THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        snprintf(message, sizeof message, "no memory for the stacks of a block");
        return;
    }
    stacks = static_cast<char*>(memory);
    for (unsigned i = 0; i < THREADS; ++i) {
        mprotect(stacks + i * STACK_BYTES, GUARD_BYTES, PROT_NONE);
    }
}

static unsigned common_divisor(unsigned a, unsigned b) { return b ? common_divisor(b, a % b) : a; }

static const unsigned long long* arguments;

template <class T>
static inline T argument(unsigned place) {
    T value;
    memcpy(&value, arguments + place, sizeof value);
    return value;
}

template <auto kernel, class... Parameters, size_t... Places>
static inline void call(void (*)(Parameters...), std::index_sequence<Places...>) {
    kernel(argument<Parameters>(Places)...);
}

template <class... Parameters>
static constexpr auto places_of(void (*)(Parameters...)) {
    return std::index_sequence_for<Parameters...>();
}

template <auto kernel>
static void run() {
    call<kernel>(kernel, places_of(kernel));
}

template <auto kernel>
static void run_plain() {
    unsigned char order[THREADS];
    shuffle(order);
    for (unsigned i = 0; i < THREADS; ++i) {
        threadIdx.x = order[i];
        run<kernel>();
    }
}

template <auto kernel>
static const char* launch(unsigned blocks, unsigned long long seed, int fibers,
                          const unsigned long long* values) {
    message[0] = 0;
    chance_state = seed;
    arguments = values;
    gridDim.x = blocks;
    in_fibers = fibers;
    body = run<kernel>;
    if (fibers) have_stacks();
    if (setjmp(launcher)) return message;
    unsigned step = chance_below(blocks) | 1, begin = chance_below(blocks);
    while (common_divisor(step, blocks) != 1) step += 2;
    unsigned long long block = begin;
    for (unsigned i = 0; i < blocks && !message[0]; ++i) {
        blockIdx.x = static_cast<unsigned>(block);
        block = (block + step) % blocks;
        if (__start_shim_shared) {
            memset(__start_shim_shared, GARBAGE, __stop_shim_shared - __start_shim_shared);
        }
        fibers ? run_fibers() : run_plain<kernel>();
    }
    return message;
}

struct Place { const char* file; unsigned line, column; };  // as the compiler's checks give it

[[noreturn]] static void fail_check(const Place* place, const char* what) {
    char text[256];
    snprintf(text, sizeof text, "%s:%u", place->file, place->line);
    fail_at(text, what);
}

}  // namespace shim

#define SHIM_CHECK(name, what)                                                            \
    extern "C" __attribute__((visibility("hidden"), used)) void __ubsan_handle_##name(    \
        const shim::Place* place) {                                                       \
        shim::fail_check(place, what);                                                    \
    }
SHIM_CHECK(type_mismatch_v1, "an address is null, or not aligned to its type")
SHIM_CHECK(out_of_bounds, "an index is outside its array")
SHIM_CHECK(shift_out_of_bounds, "a shift by more than the bits there are")
SHIM_CHECK(add_overflow, "a signed sum overflows")
SHIM_CHECK(sub_overflow, "a signed difference overflows")
SHIM_CHECK(mul_overflow, "a signed product overflows")
SHIM_CHECK(negate_overflow, "a negation overflows")
SHIM_CHECK(divrem_overflow, "a division by zero, or one that overflows")

#define SHIM_LAUNCHER(kernel)                                                             \
    static_assert(BLOCK_THREADS == shim::THREADS, "blocks of another size");              \
    extern "C" __attribute__((visibility("default"))) const char* launch_##kernel(        \
        unsigned blocks, unsigned long long seed, int fibers,                             \
        const unsigned long long* values) {                                               \
        return shim::launch<kernel>(blocks, seed, fibers, values);                        \
    }

#define SHIM_TEXT(value) #value
#define SHIM_LINE(line) SHIM_TEXT(line)
#define SHIM_AT(what) (__FILE__ ":" SHIM_LINE(__LINE__) " " what)

#define __syncthreads() shim::wait_for_block(SHIM_AT("__syncthreads"))
#define __syncwarp(...) \
    static_cast<void>(shim::ballot(SHIM_AT("__syncwarp"), 0xffffffffu, 0))
#define __shfl_sync(mask, value, source) \
    shim::shuffle_of(SHIM_AT("__shfl_sync"), mask, value, source)
#define __shfl_down_sync(mask, value, delta) \
    shim::shuffle_down(SHIM_AT("__shfl_down_sync"), mask, value, delta)
#define __ballot_sync(mask, predicate) \
    shim::ballot(SHIM_AT("__ballot_sync"), mask, predicate)

// Memory

template <class T> static inline T __ldg(const T* address) { return *address; }
template <class T> static inline T __ldcs(const T* address) { return *address; }
template <class T> static inline void __stcs(T* address, T value) { *address = value; }
template <class T> static inline void __stwb(T* address, T value) { *address = value; }

template <class T> static inline T __ldcg(const T* address) { return *address; }

// A polling loop calls __nanosleep, where another thread may run.
static inline void __threadfence() { shim::maybe_give_way(); }
static inline void __nanosleep(unsigned) { shim::maybe_give_way(); }

#define SHIM_ATOMIC(T, name, parameter, next)                  \
    static inline T name(T* address, parameter T value) {      \
        shim::maybe_give_way();                                \
        T old = *address;                                      \
        *address = next;                                       \
        shim::maybe_give_way();                                \
        return old;                                            \
    }
#define SHIM_ADD(T) SHIM_ATOMIC(T, atomicAdd, , static_cast<T>(old + value))
#define SHIM_MIN_MAX(T)                                    \
    SHIM_ATOMIC(T, atomicMin, , value < old ? value : old) \
    SHIM_ATOMIC(T, atomicMax, , value > old ? value : old)
#define SHIM_CAS(T) SHIM_ATOMIC(T, atomicCAS, T compared SHIM_COMMA, old == compared ? value : old)
#define SHIM_EXCHANGE(T) SHIM_ATOMIC(T, atomicExch, , value)
#define SHIM_COMMA ,

SHIM_ADD(int)
SHIM_ADD(unsigned)
SHIM_ADD(unsigned long long)
SHIM_MIN_MAX(int)
SHIM_MIN_MAX(unsigned)
SHIM_MIN_MAX(long long)
SHIM_MIN_MAX(unsigned long long)
SHIM_CAS(int)
SHIM_CAS(unsigned)
SHIM_CAS(unsigned long long)
SHIM_EXCHANGE(int)
SHIM_EXCHANGE(unsigned)
SHIM_EXCHANGE(unsigned long long)

// Numbers

static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __ffs(int bits) { return __builtin_ffs(bits); }
static inline int __clz(int bits) { return bits ? __builtin_clz(bits) : 32; }
static inline int __clzll(long long bits) { return bits ? __builtin_clzll(bits) : 64; }

static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}

#define SHIM_LEAST_LARGEST(T)                               \
    static inline T min(T a, T b) { return b < a ? b : a; } \
    static inline T max(T a, T b) { return a < b ? b : a; }
SHIM_LEAST_LARGEST(int)
SHIM_LEAST_LARGEST(unsigned)
SHIM_LEAST_LARGEST(long long)
SHIM_LEAST_LARGEST(unsigned long long)
