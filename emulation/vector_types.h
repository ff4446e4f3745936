// CUDA's small vectors, with its names, sizes and alignments: dim3, uint3, float2, float4 and
// similar types, and make_... for each. Only those that Tercio uses. For both sides, host and
// kernels. Memory of any type may be read and written through them, as nvcc permits.
#pragma once

struct uint3 {
  unsigned int x, y, z;
};

struct dim3 {
  constexpr dim3(unsigned int x_size = 1, unsigned int y_size = 1, unsigned int z_size = 1)
      : x(x_size), y(y_size), z(z_size) {}
  unsigned int x, y, z;
};

struct [[gnu::may_alias]] alignas(8) float2 {
  float x, y;
};
struct [[gnu::may_alias]] alignas(16) float4 {
  float x, y, z, w;
};
struct [[gnu::may_alias]] alignas(16) double2 {
  double x, y;
};
struct [[gnu::may_alias]] alignas(8) int2 {
  int x, y;
};
struct [[gnu::may_alias]] alignas(16) int4 {
  int x, y, z, w;
};
struct [[gnu::may_alias]] alignas(8) uint2 {
  unsigned int x, y;
};
struct [[gnu::may_alias]] alignas(16) uint4 {
  unsigned int x, y, z, w;
};

constexpr float2 make_float2(float x, float y) { return {x, y}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
constexpr double2 make_double2(double x, double y) { return {x, y}; }
constexpr int2 make_int2(int x, int y) { return {x, y}; }
constexpr int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
constexpr uint3 make_uint3(unsigned int x, unsigned int y, unsigned int z) { return {x, y, z}; }
constexpr uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) {
  return {x, y, z, w};
}
