// Floats: the one NaN that rows contain (contract.md, rule 1), large sums (rule 9), and arithmetic
// on four floats.

#define NAN_BITS 0x7fc00000u
#define INFINITY_BITS 0x7f800000u
#define LARGE_EXPONENT 0x5c000000u  // of 2**57 (embstore/arithmetic/sums.py)

__device__ __forceinline__ float canonical(float value) {
    return value == value ? value : __uint_as_float(NAN_BITS);
}

__device__ __forceinline__ float4 canonical(float4 piece) {
    return make_float4(
        canonical(piece.x), canonical(piece.y), canonical(piece.z), canonical(piece.w));
}

__device__ __forceinline__ bool is_large(float value) {
    return (__float_as_uint(value) & INFINITY_BITS) >= LARGE_EXPONENT;
}

__device__ __forceinline__ float4 constant(float value) {
    return make_float4(value, value, value, value);
}

__device__ __forceinline__ float4 add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

__device__ __forceinline__ float4 multiply(float a, float4 b) {
    return make_float4(a * b.x, a * b.y, a * b.z, a * b.w);
}

__device__ __forceinline__ float4 divide(float4 a, float b) {
    return make_float4(a.x / b, a.y / b, a.z / b, a.w / b);
}
