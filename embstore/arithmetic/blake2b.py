"""The constants of BLAKE2b (RFC 7693), and the scratch array of the kernels that compute it.

All hashes have 32 bytes, no key and no salt. LANES messages of one length are hashed at once, each
in a column of the scratch array, (LAST + 1, LANES) uint64. Four words fill a register of AVX2.
Hashing LANES messages at once takes a third of the time of hashing them one after the other.
"""

LANES = 4
STATE, WORDS, COUNTED, LAST = range(8), range(8, 24), 24, 25
"""Rows of the scratch array: the hash so far; the next 128 bytes of the messages; the number of
message bytes up to the end of these 128 bytes; all ones if these 128 bytes are the last ones, else
0."""

START = (
    0x6A09E667F3BCC908,
    0xBB67AE8584CAA73B,
    0x3C6EF372FE94F82B,
    0xA54FF53A5F1D36F1,
    0x510E527FADE682D1,
    0x9B05688C2B3E6C1F,
    0x1F83D9ABFB41BD6B,
    0x5BE0CD19137E2179,
)
HASH_BYTES = 32
OF_32_BYTES = (START[0] ^ 0x01010000 ^ HASH_BYTES, *START[1:])
"""The state before the first bytes."""

_ORDERS = (
    "0123456789abcdef",
    "ea489fd61c02b753",
    "b8c052fdae367194",
    "7931dcbe265a40f8",
    "905724afe1bc683d",
    "2c6a0b834d75fe19",
    "c51fed4a0763928b",
    "db7ec13950f4862a",
    "6fe9b308c2d714a5",
    "a2847615fb9e3cd0",
)
ROUNDS = tuple(tuple(int(word, 16) for word in _ORDERS[number % 10]) for number in range(12))
"""For each round, the numbers of the message words that its half steps add."""
