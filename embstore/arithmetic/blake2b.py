"""The constants of BLAKE2b (RFC 7693), and the scratch in which kernels hash messages side by side.

A message of 32 bytes of hash has no key and no salt. LANES messages of one length are hashed at
once, each in a column of the scratch, (LAST + 1, LANES) uint64: four words are a register of AVX2,
which takes a third of the time of one message after the other.
"""

LANES = 4
STATE, WORDS, COUNTED, LAST = range(8), range(8, 24), 24, 25
"""Rows of the scratch: the hash so far; the next 128 bytes; how many bytes of the message there are
up to their end; all ones where they are the last, else 0."""

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
"""Of each round, which word of the message each half step adds."""
