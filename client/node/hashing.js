// Hashed ids (contract.md): XXH3-64 of a text's UTF-8 or an integer's 8 little-endian bytes.
//
// It needs no package. Numbers of 64 bits are BigInts, so it is slow: for many ids take a library.

const MASK = (1n << 64n) - 1n;
const RESERVED = MASK; // as int64 -1, which stands for no key
const [P32_1, P32_2, P32_3] = [0x9e3779b1n, 0x85ebca77n, 0xc2b2ae3dn];
const P64_1 = 0x9e3779b185ebca87n;
const P64_2 = 0xc2b2ae3d27d4eb4fn;
const P64_3 = 0x165667b19e3779f9n;
const P64_4 = 0x85ebca77c2b2ae63n;
const P64_5 = 0x27d4eb2f165667c5n;
const [MX1, MX2] = [0x165667919e3779f9n, 0x9fb21c651e98df25n];
const SECRET = Buffer.from(
  'b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f'
  + 'cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c'
  + '3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8'
  + 'a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364'
  + 'eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e'
  + '2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e',
  'hex',
);

/** Return the hash of an id, a string or a BigInt; with `rows` the key in a table of so many. */
export function hashId(id, { seed = 0n, rows = null } = {}) {
  const bytes = typeof id === 'string' ? Buffer.from(id) : Buffer.alloc(8);
  if (typeof id !== 'string') bytes.writeBigUInt64LE(BigInt.asUintN(64, id));
  const found = xxh3(bytes, seed);
  const hash = found === RESERVED ? 0n : found;
  return rows === null ? hash : hash % rows;
}

/** Return XXH3-64 of some bytes. */
export function xxh3(bytes, seed) {
  if (bytes.length > 240) return ofMany(bytes, seed);
  if (bytes.length > 16) return ofSome(bytes, seed);
  return ofFew(bytes, BigInt(bytes.length), seed);
}

function ofFew(bytes, size, seed) {
  const n = bytes.length;
  if (n > 8) {
    const low = word(bytes, 0) ^ ((secret(24) ^ secret(32)) + seed & MASK);
    const high = word(bytes, n - 8) ^ ((secret(40) ^ secret(48)) - seed & MASK);
    return avalanche(size + swapped(low, 8) + high + folded(low, high));
  }
  if (n > 3) {
    const flip = (secret(8) ^ secret(16)) - (seed ^ swapped(seed & 0xffffffffn, 4) << 32n);
    const mixed = BigInt(bytes.readUInt32LE(n - 4)) + (BigInt(bytes.readUInt32LE(0)) << 32n);
    let h = mixed ^ (flip & MASK);
    h = (h ^ rotated(h, 49n) ^ rotated(h, 24n)) * MX2 & MASK;
    h = (h ^ (h >> 35n) + size) * MX2 & MASK;
    return h ^ h >> 28n;
  }
  if (n === 0) return avalanche64(seed ^ secret(56) ^ secret(64));
  const [first, middle, last] = [bytes[0], bytes[n >> 1], bytes[n - 1]].map(BigInt);
  const flip = BigInt(SECRET.readUInt32LE(0) ^ SECRET.readUInt32LE(4)) & 0xffffffffn;
  return avalanche64((first << 16n | middle << 24n | last | size << 8n) ^ (flip + seed & MASK));
}

/** 17 to 240 bytes: pairs of words, from both ends inwards or from the first to the last. */
function ofSome(bytes, seed) {
  const n = bytes.length;
  const mix = (at, by) => folded(
    word(bytes, at) ^ (secret(by) + seed & MASK),
    word(bytes, at + 8) ^ (secret(by + 8) - seed & MASK),
  );
  let sum = BigInt(n) * P64_1;
  if (n <= 128) {
    for (let i = 0; i < n / 32; i += 1) {
      sum += mix(16 * i, 32 * i) + mix(n - 16 * (i + 1), 32 * i + 16);
    }
    return avalanche(sum);
  }
  for (let i = 0; i < 8; i += 1) sum += mix(16 * i, 16 * i);
  sum = avalanche(sum) + mix(n - 16, 119);
  for (let i = 8; i < Math.floor(n / 16); i += 1) sum += mix(16 * i, 16 * (i - 8) + 3);
  return avalanche(sum);
}

/** More than 240 bytes: stripes of 64, blocks of 16 stripes. */
function ofMany(bytes, seed) {
  const own = Buffer.alloc(192); // the secret of this seed
  for (let at = 0; at < 192; at += 16) {
    own.writeBigUInt64LE(secret(at) + seed & MASK, at);
    own.writeBigUInt64LE(secret(at + 8) - seed & MASK, at + 8);
  }
  const sums = [P32_3, P64_1, P64_2, P64_3, P64_4, P32_2, P64_5, P32_1];
  const add = (at, by) => {
    for (let i = 0; i < 8; i += 1) {
      const value = word(bytes, at + 8 * i);
      const keyed = value ^ word(own, by + 8 * i);
      sums[i ^ 1] = sums[i ^ 1] + value & MASK;
      sums[i] = sums[i] + (keyed & 0xffffffffn) * (keyed >> 32n) & MASK;
    }
  };
  const last = bytes.length - 64;
  for (let at = 0, stripe = 0; at < last; at += 64, stripe += 1) {
    add(at, 8 * (stripe % 16));
    if (stripe % 16 === 15) { // the last of its block
      sums.forEach((h, i) => {
        sums[i] = (h ^ h >> 47n ^ word(own, 128 + 8 * i)) * P32_1 & MASK;
      });
    }
  }
  add(last, 121);
  let sum = BigInt(bytes.length) * P64_1;
  for (let i = 0; i < 4; i += 1) {
    const by = 11 + 16 * i;
    sum += folded(sums[2 * i] ^ word(own, by), sums[2 * i + 1] ^ word(own, by + 8));
  }
  return avalanche(sum);
}

function word(bytes, at) {
  return bytes.readBigUInt64LE(at);
}

function secret(at) {
  return word(SECRET, at);
}

function swapped(value, size) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(value);
  return BigInt(`0x${bytes.subarray(0, size).toString('hex')}`);
}

function rotated(value, bits) {
  return (value << bits | value >> 64n - bits) & MASK;
}

/** Return both halves of a product of 128 bits, XORed. */
function folded(a, b) {
  return a * b & MASK ^ a * b >> 64n;
}

function avalanche(sum) {
  let h = sum & MASK;
  h = (h ^ h >> 37n) * MX1 & MASK;
  return h ^ h >> 32n;
}

function avalanche64(value) {
  let h = (value ^ value >> 33n) * P64_2 & MASK;
  h = (h ^ h >> 29n) * P64_3 & MASK;
  return h ^ h >> 32n;
}
