// Boxes of q, k and v that TMA copies for the Hopper forward: the bytes in shared memory against the layout of the PTX
// ISA, written out here, with zeros where the operands end. Also the function that
// says where those bytes are.
#include <cuda/ptx>

#include <cstring>
#include <string>
#include <vector>

#include "cuda/sm90/forward.cuh"
#include "cuda/sm90/tensor_maps.hpp"
#include "gpu_encodings.hpp"

namespace tessera::tests {
namespace {

using cuda::sm90::encode_tensor_map;
using cuda::sm90::TensorView;

// Byte of a tile [spans][rows][span] where a chunk of 16 bytes lies: swizzled over 8 rows of 128 bytes, 4 pairs of 64.
int64_t swizzled(int64_t span, int64_t rows, int64_t row, int64_t chunk) {
  const int64_t chunks = span / 16, swizzle = span == 128 ? row % 8 : row / 2 % 4;
  return (chunk / chunks * rows + row) * span + (chunk % chunks ^ swizzle) * 16;
}

struct Coordinates {
  int32_t at[5];
};

// The boxes of `spans` spans of columns, one behind the other, to shared memory and on to `out`.
template <int kSpan, int kRank>
__global__ void copy_boxes(const __grid_constant__ CUtensorMap map, Coordinates first, int spans, int rows, char* out) {
  extern __shared__ __align__(1024) char shared[];
  const int bytes = spans * rows * kSpan;
  auto& full = *reinterpret_cast<uint64_t*>(shared + bytes);
  for (int i = static_cast<int>(threadIdx.x); i < bytes; i += static_cast<int>(blockDim.x)) shared[i] = '\xff';
  if (threadIdx.x == 0) {
    ::cuda::ptx::mbarrier_init(&full, 1);
    ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
  }
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared,
                                           &full, bytes);
    for (int c = 0; c < spans; ++c) {
      int32_t at[kRank];
#pragma unroll
      for (int i = 0; i < kRank; ++i) at[i] = first.at[i];
      at[0] += c * kSpan / 2;
      ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global,
                                        shared + c * rows * kSpan, &map, at, &full);
    }
  }
  cuda::sm90::wait(full, 0);
  for (int i = static_cast<int>(threadIdx.x); i < bytes; i += static_cast<int>(blockDim.x)) out[i] = shared[i];
}

int32_t box_rows(const TensorView& view) {
  int32_t rows = 1;
  for (int i = 1; i < view.rank; ++i) rows *= view.box[i];
  return rows;
}

// What element (row of the box, column) is: of the data, or 0 outside.
uint16_t element_at(const TensorView& view, const Coordinates& first, int64_t row, int64_t column) {
  int64_t offset = first.at[0] + column;
  bool inside = offset < view.extent[0];
  for (int i = 1; i < view.rank; ++i) {
    const int64_t at = first.at[i] + row % view.box[i];
    row /= view.box[i];
    inside = inside && at < view.extent[i];
    offset += at * view.stride[i];
  }
  return inside ? static_cast<const uint16_t*>(view.data)[offset] : 0;
}

template <int kSpan, int kRank>
void check_boxes(const TensorView& view, const Coordinates& first, int spans) {
  ASSERT_EQ(cuda::sm90::load_encoder(), cudaSuccess);
  CUtensorMap map{};
  ASSERT_EQ(encode_tensor_map(view, kSpan == 128 ? TESSERA_BF16 : TESSERA_F16, kSpan, &map), cudaSuccess);
  const int32_t rows = box_rows(view);
  const int bytes = spans * rows * kSpan;
  const Managed<char> out(static_cast<size_t>(bytes));
  ASSERT_NO_FATAL_FAILURE(launch(copy_boxes<kSpan, kRank>, 1, 128, bytes + 16, map, first, spans, rows, out.data()));
  Differences differences;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < spans * kSpan / 2; ++column) {
      uint16_t found = 0;
      std::memcpy(&found, &out[static_cast<size_t>(swizzled(kSpan, rows, row, column / 8) + column % 8 * 2)], 2);
      differences.compare(found, element_at(view, first, row, column), row, column);
    }
  }
}

// The boxes at `first` in as many spans as a tile of `columns` has, in both spans.
template <int kRank>
void check_tile(TensorView view, const Coordinates& first, int32_t columns) {
  for (const int32_t span : {128, 64}) {
    if (columns % (span / 2) != 0) continue;
    SCOPED_TRACE("span " + std::to_string(span) + ", " + std::to_string(view.extent[0]) + " of " +
                 std::to_string(columns) + " columns");
    view.box[0] = span / 2;
    const auto check = span == 128 ? check_boxes<128, kRank> : check_boxes<64, kRank>;
    check(view, first, columns / view.box[0]);
  }
}

// Bit patterns that tell elements apart; none is 0.
void number(const Managed<uint16_t>& data) {
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint16_t>(i % 65521 + 1);
}

// q [batch 3, rows 50, heads 8, dim], `pack` heads together, a gap of 24 elements after every row.
void check_query(int32_t dim, int32_t pack, int32_t tile_rows, int32_t row, int32_t columns) {
  constexpr int64_t kRows = 50, kBatches = 3;
  constexpr int32_t kHeads = 8;
  const int64_t row_stride = kHeads * dim + 24;
  const Managed<uint16_t> data(static_cast<size_t>(kBatches * kRows * row_stride));
  number(data);
  const TensorView q{data.data(),
                     5,
                     {dim, pack, kRows, kHeads / pack, kBatches},
                     {1, dim, row_stride, int64_t{dim} * pack, kRows * row_stride},
                     {0, pack, tile_rows / pack, 1, 1}};
  check_tile<5>(q, {{0, 0, row, kHeads / pack - 1, 2}}, columns);
  check_tile<5>(q, {{0, 0, 0, 0, 0}}, columns);
}

TEST(GpuTensorMaps, QueryTilesOfOneHead) {
  TESSERA_NEEDS_HOPPER();
  for (const int32_t tile_rows : {128, 192}) check_query(64, 1, tile_rows, 0, 64);
  check_query(64, 1, 128, 47, 64);
}

TEST(GpuTensorMaps, QueryTilesOfAPackOfHeads) {
  TESSERA_NEEDS_HOPPER();
  for (const int32_t pack : {2, 4, 8}) check_query(64, pack, 128, 128 / pack, 64);
}

TEST(GpuTensorMaps, ColumnsPastTheHeadDimAreZero) {
  TESSERA_NEEDS_HOPPER();
  check_query(8, 4, 128, 32, 64);     // most of a span
  check_query(40, 4, 128, 32, 96);    // a span of 64 bytes and a part
  check_query(136, 4, 128, 32, 192);  // a part of the last span
  check_query(8, 8, 128, 16, 192);    // whole spans
}

// k [batch 2, rows, heads 3, dim] as it lies by rows or by heads.
TensorView key_view(const Managed<uint16_t>& data, int32_t dim, int64_t rows, bool by_heads, int32_t box) {
  constexpr int64_t kHeads = 3, kBatches = 2;
  return {data.data(),
          4,
          {dim, rows, kHeads, kBatches},
          {1, by_heads ? dim : kHeads * dim, by_heads ? rows * dim : dim, kHeads * rows * dim},
          {0, box, 1, 1}};
}

TEST(GpuTensorMaps, KeyTilesOfEveryHeight) {
  TESSERA_NEEDS_HOPPER();
  for (const int32_t tile_n : {32, 48, 64, 96, 128}) {
    for (const bool by_heads : {false, true}) {
      const int64_t rows = 2 * tile_n + 5;
      const Managed<uint16_t> data(static_cast<size_t>(2 * 3 * rows * 128));
      number(data);
      const TensorView k = key_view(data, 128, rows, by_heads, tile_n);
      check_tile<4>(k, {{0, tile_n, 1, 1}}, 128);
    }
  }
}

TEST(GpuTensorMaps, RowsPastTheEndAreZero) {
  TESSERA_NEEDS_HOPPER();
  for (const int64_t rows : {129, 136, 255}) {
    const Managed<uint16_t> data(static_cast<size_t>(2 * 3 * rows * 72));
    number(data);
    const TensorView k = key_view(data, 72, rows, false, 128);
    check_tile<4>(k, {{0, 128, 2, 1}}, 96);   // the rest of the tile
    check_tile<4>(k, {{0, 256, 0, 0}}, 128);  // all of it, beside rows of the next batch
  }
}

TEST(GpuTensorMaps, RowsOfPages) {
  TESSERA_NEEDS_HOPPER();
  constexpr int64_t kPages = 5, kHeads = 2;
  for (const int32_t page_size : {8, 16, 48}) {
    const Managed<uint16_t> data(static_cast<size_t>(kPages * page_size * kHeads * 64));
    number(data);
    for (const int32_t box : {8, 16}) {
      if (page_size % box != 0) continue;
      const TensorView pages{data.data(),
                             4,
                             {64, page_size, kHeads, kPages},
                             {1, kHeads * 64, 64, page_size * kHeads * 64},
                             {0, box, 1, 1}};
      check_tile<4>(pages, {{0, page_size - box, 1, 3}}, 64);
    }
  }
}

// Strides of dimensions of size 1 may be anything.
TEST(GpuTensorMaps, StridesThatNothingUsesAreNotAskedFor) {
  TESSERA_NEEDS_HOPPER();
  const Managed<uint16_t> data(64 * 64);
  number(data);
  const TensorView q{data.data(), 5, {64, 1, 64, 1, 1}, {1, 3, 64, -7, int64_t{1} << 60}, {0, 1, 128, 1, 1}};
  // The elements at coordinate 0 of those dimensions do not depend on the strides.
  check_tile<5>(q, {{0, 0, 0, 0, 0}}, 64);
}

TEST(GpuTensorMaps, WhatCannotBeEncodedIsAnError) {
  TESSERA_NEEDS_HOPPER();
  ASSERT_EQ(cuda::sm90::load_encoder(), cudaSuccess);
  const Managed<uint16_t> data(64 * 72);
  CUtensorMap map{};
  const TensorView uneven{data.data(), 4, {64, 64, 1, 1}, {1, 68, 0, 0}, {64, 32, 1, 1}};
  EXPECT_EQ(encode_tensor_map(uneven, TESSERA_F16, 128, &map), cudaErrorInvalidValue);
  const TensorView empty{nullptr, 4, {64, 0, 1, 1}, {1, 64, 0, 0}, {64, 32, 1, 1}};
  std::memset(&map, 0x5a, sizeof map);
  const CUtensorMap before = map;
  EXPECT_EQ(encode_tensor_map(empty, TESSERA_F16, 128, &map), cudaSuccess);
  EXPECT_EQ(std::memcmp(&map, &before, sizeof map), 0);
}

template <int kSpan>
__global__ void chunk_offsets(uint32_t rows, uint32_t chunks, uint32_t* out) {
  for (uint32_t i = threadIdx.x; i < rows * chunks; i += blockDim.x) {
    out[i] = cuda::sm90::chunk_offset<kSpan>(rows, i / chunks, i % chunks);
  }
}

TEST(GpuTensorMaps, GatheredRowsLieAsCopiedOnes) {
  TESSERA_NEEDS_HOPPER();
  for (const int64_t span : {128, 64}) {
    for (const int64_t rows : {32, 48, 96, 128}) {
      const int64_t chunks = 24;
      const Managed<uint32_t> out(static_cast<size_t>(rows * chunks));
      const auto kernel = span == 128 ? chunk_offsets<128> : chunk_offsets<64>;
      ASSERT_NO_FATAL_FAILURE(
          launch(kernel, 1, 128, 0, static_cast<uint32_t>(rows), static_cast<uint32_t>(chunks), out.data()));
      Differences differences;
      for (int64_t i = 0; i < rows * chunks; ++i) {
        differences.compare(int64_t{out[static_cast<size_t>(i)]}, swizzled(span, rows, i / chunks, i % chunks),
                            i / chunks, i % chunks);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::tests
