// Counts what kernels load and store of the memory that a runtime allocated. The shim is compiled
// with -fsanitize=thread, which calls these functions at every access that is left when g++ has
// kept values in registers, as a device's compiler does; this file is not, and there is no runtime
// library.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API extern "C" __attribute__((visibility("default")))
#define CALLED extern "C" __attribute__((visibility("hidden"), used))

namespace {

constexpr int SECTOR_SHIFT = 5;

struct Range { uint64_t begin, end; };

const Range* ranges;  // ascending, apart
uint64_t range_count;
Range last;           // that an access was in

// Numbers of sectors, by open addressing; 0 is none.
struct Sectors {
    uint64_t* places = nullptr;
    uint64_t mask = 0, count = 0, latest = 0, bytes = 0;

    void clear() {
        if (places) memset(places, 0, (mask + 1) * sizeof *places);
        count = latest = bytes = 0;
    }

    void grow() {
        uint64_t* old = places;
        uint64_t old_size = old ? mask + 1 : 0;
        mask = old ? 2 * mask + 1 : (1 << 16) - 1;
        places = static_cast<uint64_t*>(calloc(mask + 1, sizeof *places));
        count = 0;
        for (uint64_t i = 0; i < old_size; ++i) {
            if (old[i]) add(old[i]);
        }
        free(old);
    }

    void add(uint64_t sector) {
        if (2 * count >= mask) grow();
        uint64_t at = (sector * 0x9e3779b97f4a7c15ull >> 20) & mask;
        while (places[at] && places[at] != sector) at = (at + 1) & mask;
        count += !places[at];
        places[at] = sector;
    }

    void access(uint64_t address, unsigned size) {
        bytes += size;
        uint64_t first = address >> SECTOR_SHIFT, behind = (address + size - 1) >> SECTOR_SHIFT;
        if (first == latest && behind == latest) return;
        add(first);
        if (behind != first) add(behind);
        latest = behind;
    }
};

Sectors loaded, stored;

bool is_global(uint64_t address) {
    if (last.begin <= address && address < last.end) return true;
    uint64_t low = 0, high = range_count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (ranges[middle].end <= address) low = middle + 1; else high = middle;
    }
    if (low == range_count || address < ranges[low].begin) return false;
    last = ranges[low];
    return true;
}

}  // namespace

API void shim_count(const Range* of, uint64_t count) {
    ranges = of;
    range_count = count;
    last = {};
    loaded.clear();
    stored.clear();
}

API void shim_counted(uint64_t* out) {
    out[0] = loaded.bytes;
    out[1] = stored.bytes;
    out[2] = loaded.count << SECTOR_SHIFT;
    out[3] = stored.count << SECTOR_SHIFT;
    range_count = 0;
    last = {};
}

#define ACCESS(name, size, sectors)                                                  \
    CALLED void __tsan_##name(void* address) {                                       \
        uint64_t at = reinterpret_cast<uint64_t>(address);                           \
        if (is_global(at)) sectors.access(at, size);                                 \
    }
#define ACCESSES(size)                                                               \
    ACCESS(read##size, size, loaded) ACCESS(unaligned_read##size, size, loaded)      \
    ACCESS(write##size, size, stored) ACCESS(unaligned_write##size, size, stored)
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)

#define RANGE(name, sectors)                                                         \
    CALLED void __tsan_##name##_range(void* address, unsigned long size) {           \
        uint64_t at = reinterpret_cast<uint64_t>(address);                           \
        if (is_global(at)) sectors.access(at, static_cast<unsigned>(size));          \
    }
RANGE(read, loaded)
RANGE(write, stored)

CALLED void __tsan_init() {}
CALLED void __tsan_func_entry(void*) {}
CALLED void __tsan_func_exit() {}
