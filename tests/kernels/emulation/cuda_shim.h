// The subset of CUDA that the kernels use, for a host compiler: g++ builds fibers.h, this, kernels
// and launchers as one text, and each library has a state of its own, which one thread uses at a
// time.
//
// A launch runs its threads in one of two ways. **Plain**: blocks one after the other, in an order
// that its seed gives, and each thread to its end before the next begins, in an order shuffled anew
// for each block; this is for kernels without barriers and warp collectives. **Fibers**: every
// thread has a stack, and gives way where it waits for others, where it polls (__nanosleep) and, by
// chance, at every atomic; the next to run is drawn from those that can. What a thread reads before
// an atomic may therefore be old after it, as on a device. So many blocks are resident as the
// launch is told: one, or more **together**, also those of two launches.
//
// Nothing takes the process down if it can be helped: a barrier that not all threads reach, a
// collective whose lanes stand at different places, polling for what no thread writes, and what the
// compiler's checks find (alignment, null pointers, array bounds, overflows: -fsanitize) end the
// launch with a message. Shared memory is filled with garbage before each block; it lies in a
// section of its own, which the linker bounds.

#include <math.h>
#include <string.h>

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
static void run_thread_of() {
    call<kernel>(kernel, places_of(kernel));
}

template <auto kernel>
static void run_block_of() {
    unsigned char order[THREADS];
    shuffle(order);
    for (unsigned i = 0; i < THREADS; ++i) {
        threadIdx.x = order[i];
        run_thread_of<kernel>();
    }
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

#define SHIM_KERNEL(kernel)                                                               \
    static_assert(BLOCK_THREADS == shim::THREADS, "blocks of another size");              \
    extern "C" __attribute__((visibility("default"))) const shim::Kernel kernel_##kernel = \
        {shim::run_thread_of<kernel>, shim::run_block_of<kernel>};

extern "C" __attribute__((visibility("default"))) const char* shim_launch(
    shim::Launch* launches, unsigned count, unsigned long long seed, unsigned resident) {
    return shim::launch(launches, count, seed, resident);
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
#define __nanosleep(nanoseconds) shim::nap(SHIM_AT("__nanosleep"))

// Memory

static inline void __threadfence() {
    asm volatile("" ::: "memory");
    shim::maybe_give_way();
}
template <class T> static inline T __ldg(const T* address) { return *address; }
template <class T> static inline T __ldcg(const T* address) { return *address; }
template <class T> static inline T __ldcs(const T* address) { return *address; }
template <class T> static inline void __stcs(T* address, T value) { *address = value; }
template <class T> static inline void __stwb(T* address, T value) { *address = value; }

#define SHIM_ATOMIC(T, name, parameter, next)                  \
    static inline T name(T* address, parameter T value) {      \
        shim::maybe_give_way();                                \
        T old = *address, now = next;                          \
        *address = now;                                        \
        shim::leave_atomic(now != old);                        \
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
