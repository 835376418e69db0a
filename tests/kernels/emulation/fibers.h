// Threads of blocks on one thread of the host: the first part of the shim (cuda_shim.h has the rest,
// and says in which ways a launch runs).
//
// In fibers, up to `resident` blocks of up to two launches are there at the same time; one begins
// when another ends. Each has a stack a thread, a barrier, warps, and shared memory, whose content
// is in the section `shim_shared` while one of the block's threads runs.

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if !defined(__x86_64__)
#define SHIM_UCONTEXT
#endif
#ifdef SHIM_UCONTEXT
#include <ucontext.h>
#endif

namespace shim {

struct Index { unsigned x; };

constexpr unsigned THREADS = 256;
constexpr unsigned LANES = 32;
constexpr unsigned WARPS = THREADS / LANES;
constexpr unsigned RESIDENT_MAX = 128;
constexpr size_t STACK_BYTES = 128 << 10;
constexpr size_t GUARD_BYTES = 4 << 10;
constexpr int GARBAGE = 0xa5;
// For each resident block, while no thread ends, passes a barrier or changes memory by an atomic.
constexpr unsigned POLLS_MAX = 1 << 18;
constexpr unsigned STAY = 7;             // times of 8 that the next thread is of the same block

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

// The state of launches

struct Kernel {
    void (*thread)();           // in fibers
    void (*block)();            // plain
};

struct Launch {
    const Kernel* kernel;
    const unsigned long long* arguments;
    unsigned blocks;
    unsigned begun, step;       // blocks begin in the order of next, next + step, ...
    unsigned long long next;
};

enum State : unsigned char { READY, AT_WARP, AT_BLOCK, ENDED };

struct Warp {
    const char* place;          // where the lanes that have arrived wait
    unsigned arrived;
    unsigned turn;              // 0 or 1: lanes may enter a collective while others leave the last
    unsigned ballots[2];
    unsigned long long values[2][LANES];
};

struct Block {
    const Launch* launch;       // null: none is resident here
    unsigned index, ended, arrived, ready_count;
    const char* barrier;        // where the threads that have arrived wait
    Context contexts[THREADS];
    const char* places[THREADS];
    State states[THREADS];
    unsigned char ready[THREADS];
    Warp warps[WARPS];
    char* stacks;
    char* shared;
};

static char message[1024];      // empty: nothing has gone wrong
static jmp_buf launcher;        // plain: where a failed launch goes on
static bool in_fibers;
static Context outside;         // fibers: the same
static Block* blocks[RESIDENT_MAX];  // kept for the next launch
static unsigned resident;
static Block* here;             // whose threads run
static unsigned polls;          // since something else happened
static const unsigned long long* arguments;

[[noreturn]] __attribute__((noipa)) static void fail() {
    if (!in_fibers) longjmp(launcher, 1);
    switch_to(here->contexts[threadIdx.x], outside);
    __builtin_unreachable();
}

[[noreturn]] __attribute__((noipa)) static void fail_at(const char* place, const char* what) {
    snprintf(message, sizeof message, "%s: %s (block %u, thread %u)", place, what, blockIdx.x,
             threadIdx.x);
    fail();
}

static void say_where_threads_stand(const Block& block) {
    int at = snprintf(message, sizeof message, "the threads of block %u have parted:", block.index);
    const State* states = block.states;
    bool told[THREADS] = {};
    for (unsigned first = 0; first < THREADS; ++first) {
        if (told[first] || states[first] == READY) continue;
        unsigned count = 0;
        for (unsigned i = first; i < THREADS; ++i) {
            bool same = states[i] == states[first] &&
                        (states[i] == ENDED || !strcmp(block.places[i], block.places[first]));
            count += same;
            told[i] |= same;
        }
        const char* place = states[first] == ENDED ? "have ended" : block.places[first];
        at += snprintf(message + at, sizeof message - at, " %u %s (first: thread %u);", count,
                       place, first);
        if (at >= static_cast<int>(sizeof message)) return;
    }
    message[at - 1] = 0;
}

// Fibers

// Has the section of shared memory, and the indices, be a block's.
static void enter(Block* block) {
    if (block == here) return;
    if (__start_shim_shared) {
        size_t bytes = __stop_shim_shared - __start_shim_shared;
        if (here) memcpy(here->shared, __start_shim_shared, bytes);
        memcpy(__start_shim_shared, block->shared, bytes);
    }
    here = block;
    blockIdx.x = block->index;
    gridDim.x = block->launch->blocks;
    arguments = block->launch->arguments;
}

// A block with threads that can run; null: there is none. Most of the time the one that runs.
static Block* next_block(bool stays) {
    if (resident == 1) return blocks[0]->ready_count ? blocks[0] : nullptr;
    if (stays && here && here->ready_count && chance_below(8) < STAY) return here;
    unsigned first = chance_below(resident);
    for (unsigned i = 0; i < resident; ++i) {
        Block* block = blocks[(first + i) % resident];
        if (block->ready_count) return block;
    }
    return nullptr;
}

static void run_one_of(Block* block, Context& from, unsigned running) {
    unsigned drawn = chance_below(block->ready_count);
    unsigned thread = block->ready[drawn];
    block->ready[drawn] = block->ready[--block->ready_count];
    if (block == here && thread == running) return;
    enter(block);
    threadIdx.x = thread;
    switch_to(from, block->contexts[thread]);
}

// Goes to a thread that can run; outside, where none can, or the block has ended. Whoever calls
// this has put itself where it will be found again. Not to be inlined: what is cached of memory is
// not what it was.
__attribute__((noipa)) static void give_way(bool stays) {
    Context& from = here->contexts[threadIdx.x];
    Block* next = here->ended == THREADS ? nullptr : next_block(stays);
    if (next) return run_one_of(next, from, threadIdx.x);
    switch_to(from, outside);
}

static void run_thread() {
    here->launch->kernel->thread();
    here->states[threadIdx.x] = ENDED;
    ++here->ended;
    polls = 0;
    give_way(true);
}

static void release(unsigned thread) {
    here->states[thread] = READY;
    here->ready[here->ready_count++] = static_cast<unsigned char>(thread);
}

static inline void maybe_give_way() {
    if (__builtin_expect(in_fibers, 0) && (chance() >> 63)) {
        release(threadIdx.x);
        give_way(true);
    }
}

static void count_poll(const char* place) {
    if (++polls == POLLS_MAX * resident) fail_at(place, "polls for what no thread writes");
}

// An atomic that changes nothing may be of a thread that polls.
static inline void leave_atomic(bool changed) {
    if (__builtin_expect(in_fibers, 0)) changed ? void(polls = 0) : count_poll("an atomic");
    maybe_give_way();
}

// A thread that polls for what another one writes lets others run.
__attribute__((noipa)) static void nap(const char* place) {
    if (!in_fibers) fail_at(place, "reached by a kernel that is run as a plain one");
    count_poll(place);
    release(threadIdx.x);
    give_way(false);
}

static void stand_at(const char* place, State state) {
    if (!in_fibers) fail_at(place, "reached by a kernel that is run as a plain one");
    here->states[threadIdx.x] = state;
    here->places[threadIdx.x] = place;
}

static void compare(const char* place, const char* with) {
    if (place != with && strcmp(place, with)) {
        say_where_threads_stand(*here);
        fail();
    }
}

__attribute__((noipa)) static void wait_for_block(const char* place) {
    stand_at(place, AT_BLOCK);
    if (here->arrived == 0) here->barrier = place;
    compare(place, here->barrier);
    if (++here->arrived == THREADS) {
        here->arrived = polls = 0;
        for (unsigned thread = 0; thread < THREADS; ++thread) release(thread);
    }
    give_way(true);
}

// Returns the values of all lanes. They stay until every lane has come to the next collective but
// one, which no lane does before all have read these.
__attribute__((noipa)) static const unsigned long long* exchange(
    const char* place, unsigned mask, unsigned long long value, unsigned* ballot) {
    if (mask != 0xffffffffu) fail_at(place, "the mask is not 0xffffffff");
    Warp& warp = here->warps[threadIdx.x / LANES];
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
    give_way(true);
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

static char* have_stacks(bool guarded) {
    void* memory = mmap(nullptr, THREADS * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    char* stacks = static_cast<char*>(memory);
    for (unsigned i = 0; guarded && i < THREADS; ++i) {
        mprotect(stacks + i * STACK_BYTES, GUARD_BYTES, PROT_NONE);
    }
    return stacks;
}

// Guards are of the first alone, where every kernel runs: a process may have so many mappings.
static bool have_blocks() {
    for (unsigned i = 0; i < resident; ++i) {
        if (blocks[i]) continue;
        Block* block = static_cast<Block*>(calloc(1, sizeof(Block)));
        size_t bytes = __start_shim_shared ? __stop_shim_shared - __start_shim_shared : 0;
        if (!block || !(block->shared = static_cast<char*>(malloc(bytes + 1))) ||
            !(block->stacks = have_stacks(i == 0))) {
            snprintf(message, sizeof message, "no memory for the stacks of a block");
            return false;
        }
        blocks[i] = block;
    }
    return true;
}

static void begin_block(Block& block, Launch& launch) {
    block.launch = &launch;
    block.index = static_cast<unsigned>(launch.next);
    launch.next = (launch.next + launch.step) % launch.blocks;
    ++launch.begun;
    if (__start_shim_shared) {
        memset(block.shared, GARBAGE, __stop_shim_shared - __start_shim_shared);
    }
    shuffle(block.ready);
    for (unsigned i = 0; i < THREADS; ++i) {
        block.states[i] = READY;
        begin_at(block.contexts[i], block.stacks + i * STACK_BYTES + GUARD_BYTES, run_thread);
    }
    for (Warp& warp : block.warps) warp.arrived = warp.turn = 0;
    block.ready_count = THREADS;
    block.ended = block.arrived = 0;
}

// Begins blocks where there is room, of any launch that has some left.
static void fill_up(Launch* launches, unsigned count) {
    for (unsigned i = 0; i < resident; ++i) {
        unsigned first = count > 1 ? chance_below(count) : 0;
        for (unsigned j = 0; j < count && !blocks[i]->launch; ++j) {
            Launch& launch = launches[(first + j) % count];
            if (launch.begun < launch.blocks) begin_block(*blocks[i], launch);
        }
    }
}

static void run_fibers(Launch* launches, unsigned count) {
    polls = 0;
    here = nullptr;
    for (unsigned i = 0; i < resident; ++i) blocks[i]->launch = nullptr, blocks[i]->ready_count = 0;
    while (!message[0]) {
        if (here && here->ended == THREADS) here->launch = nullptr, here = nullptr;
        fill_up(launches, count);
        Block* block = next_block(true);
        if (block) {
            run_one_of(block, outside, THREADS);
            continue;
        }
        for (unsigned i = 0; i < resident && !message[0]; ++i) {
            if (blocks[i]->launch) say_where_threads_stand(*blocks[i]);
        }
        return;
    }
}

static void run_plain(Launch& launch) {
    arguments = launch.arguments;
    gridDim.x = launch.blocks;
    for (; launch.begun < launch.blocks; ++launch.begun) {
        blockIdx.x = static_cast<unsigned>(launch.next);
        launch.next = (launch.next + launch.step) % launch.blocks;
        if (__start_shim_shared) {
            memset(__start_shim_shared, GARBAGE, __stop_shim_shared - __start_shim_shared);
        }
        launch.kernel->block();
    }
}

static unsigned common_divisor(unsigned a, unsigned b) { return b ? common_divisor(b, a % b) : a; }

// Runs launches at the same time, with so many blocks in all; none: as plain ones, in turn.
static const char* launch(Launch* launches, unsigned count, unsigned long long seed,
                          unsigned resident_max) {
    message[0] = 0;
    chance_state = seed;
    in_fibers = resident_max > 0;
    resident = 0;
    for (unsigned i = 0; i < count; ++i) {
        Launch& launch = launches[i];
        launch.step = chance_below(launch.blocks) | 1;
        launch.next = chance_below(launch.blocks);
        while (common_divisor(launch.step, launch.blocks) != 1) launch.step += 2;
        resident += launch.blocks < RESIDENT_MAX ? launch.blocks : RESIDENT_MAX;
    }
    if (resident > resident_max) resident = resident_max;
    if (resident > RESIDENT_MAX) resident = RESIDENT_MAX;
    if (setjmp(launcher)) return message;
    if (!in_fibers) {
        for (unsigned i = 0; i < count; ++i) run_plain(launches[i]);
    } else if (have_blocks()) {
        run_fibers(launches, count);
    }
    return message;
}

}  // namespace shim
