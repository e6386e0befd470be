// New rows of k and v written into a cache, and q turned, in one launch: what tessera_append_args describes. A thread
// takes 8 elements, or 8 pairs that a rotary embedding turns; neighbours take neighbouring ones.
//   k_new, v_new [batch, seqlen_new, heads_kv, dim] or packed -> cache, dense or paged
//   q [batch, seqlen_q, heads_q, dim] or packed -> q_rotated
// Work: 3 operations an element; bound by the bytes of the rows, each read and written once.
// Invariant: whatever lengths, tables and cumulative lengths hold, nothing outside the arrays is read, and a row whose
// slot, page or cache row is outside of the cache is not written. Arithmetic as the CPU's, operation by operation.
#pragma once

#include <cstdint>

#include "append_params.hpp"
#include "element.hpp"
#include "tile/scheduler.cuh"
#include "unit_io.cuh"

namespace tessera::cuda {

// value / scale as the byte of a quantised cache.
__device__ __forceinline__ uint32_t quantize(float value, float scale, int32_t dtype) {
  const float number = __fdiv_rn(value, scale);
  if (dtype == TESSERA_E4M3) return scale == 0.0f ? 0 : core::float_bits_to_e4m3(__float_as_uint(number));
  return scale == 0.0f ? 0 : static_cast<uint8_t>(core::float_to_int8(number));
}

__device__ __forceinline__ void store_unit(char* row, int32_t dtype, int first, int count, bool aligned, float scale,
                                           const Unit& unit) {
  if (dtype == TESSERA_INT8 || dtype == TESSERA_E4M3) {
    uint32_t bytes[kAppendUnit];
#pragma unroll
    for (int i = 0; i < kAppendUnit; ++i) bytes[i] = quantize(unit.x[i], scale, dtype);
    char* to = row + first;
    if (aligned && count == kAppendUnit) {
      *reinterpret_cast<uint2*>(to) = make_uint2(bytes[0] | bytes[1] << 8 | bytes[2] << 16 | bytes[3] << 24,
                                                 bytes[4] | bytes[5] << 8 | bytes[6] << 16 | bytes[7] << 24);
      return;
    }
#pragma unroll
    for (int i = 0; i < kAppendUnit; ++i) {
      if (i < count) to[i] = static_cast<char>(bytes[i]);
    }
    return;
  }
  char* to = row + static_cast<int64_t>(first) * (dtype == TESSERA_F32 ? 4 : 2);
  if (!aligned || count < kAppendUnit) {
#pragma unroll
    for (int i = 0; i < kAppendUnit; ++i) {
      if (i < count) store_number(to, dtype, i, unit.x[i]);
    }
  } else if (dtype == TESSERA_F32) {
    reinterpret_cast<float4*>(to)[0] = make_float4(unit.x[0], unit.x[1], unit.x[2], unit.x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(unit.x[4], unit.x[5], unit.x[6], unit.x[7]);
  } else {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = unit.x[2 * i], high = unit.x[2 * i + 1];
      pairs[i] = dtype == TESSERA_F16 ? ptx::pack_f16(low, high) : ptx::pack_bf16(low, high);
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// Rows that are neither turned nor converted keep every bit.
__device__ __forceinline__ void copy_unit(const char* from_row, char* to_row, int32_t dtype, int first, int count,
                                          bool aligned) {
  const int bytes = dtype == TESSERA_F32 ? 4 : 2;
  const char* from = from_row + static_cast<int64_t>(first) * bytes;
  char* to = to_row + static_cast<int64_t>(first) * bytes;
  if (aligned && count == kAppendUnit) {
    for (int i = 0; i < bytes / 2; ++i) reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  } else if (bytes == 4) {
    for (int i = 0; i < count; ++i) reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
  } else {
    for (int i = 0; i < count; ++i) reinterpret_cast<uint16_t*>(to)[i] = reinterpret_cast<const uint16_t*>(from)[i];
  }
}

// The pairs [8 index, 8 index + 8) of a head's row.
__device__ __forceinline__ void turn_unit(const AppendParams& p, const AppendRows& x, const char* from, char* to,
                                          int index, int64_t position, float scale) {
  const int pair = index * kAppendUnit, count = x.pairs - pair < kAppendUnit ? x.pairs - pair : kAppendUnit;
  const int64_t table_row = position * x.pairs * (p.rotary_dtype == TESSERA_F32 ? 4 : 2);
  const Unit cos =
      load_unit(static_cast<const char*>(p.cos) + table_row, p.rotary_dtype, pair, count, p.tables_aligned);
  const Unit sin =
      load_unit(static_cast<const char*>(p.sin) + table_row, p.rotary_dtype, pair, count, p.tables_aligned);
  const bool interleaved = p.rotary_interleaved != 0;
  // Neighbours: the 2 count elements from 2 pair on. Halves: count elements of either.
  const int first = interleaved ? 2 * pair : pair, second = interleaved ? first + kAppendUnit : pair + x.pairs;
  const int first_count = interleaved ? (2 * count < kAppendUnit ? 2 * count : kAppendUnit) : count;
  const int second_count = interleaved ? 2 * count - first_count : count;
  const Unit low = load_unit(from, x.from_dtype, first, first_count, x.turned_aligned);
  const Unit high = load_unit(from, x.from_dtype, second, second_count, x.turned_aligned);
  Unit turned_low, turned_high;
  const auto turn = [&](int i, float a, float b, float& to_a, float& to_b) {
    to_a = __fsub_rn(__fmul_rn(a, cos.x[i]), __fmul_rn(b, sin.x[i]));
    to_b = __fadd_rn(__fmul_rn(a, sin.x[i]), __fmul_rn(b, cos.x[i]));
  };
  if (interleaved) {
#pragma unroll
    for (int i = 0; i < kAppendUnit / 2; ++i) {
      turn(i, low.x[2 * i], low.x[2 * i + 1], turned_low.x[2 * i], turned_low.x[2 * i + 1]);
      turn(i + 4, high.x[2 * i], high.x[2 * i + 1], turned_high.x[2 * i], turned_high.x[2 * i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kAppendUnit; ++i) turn(i, low.x[i], high.x[i], turned_low.x[i], turned_high.x[i]);
  }
  store_unit(to, x.to_dtype, first, first_count, x.turned_aligned, scale, turned_low);
  store_unit(to, x.to_dtype, second, second_count, x.turned_aligned, scale, turned_high);
}

// Where a row comes from, where it goes, and its position. batch < 0: nowhere.
struct RowPlace {
  int64_t batch, row;        // of the operand that is read
  int64_t to_batch, to_row;  // of the one that is written
  int64_t position;
};

// The last sequence that begins at or before `row`; by a whole warp.
__device__ __forceinline__ int find_sequence(const int32_t* cu, int batch, int64_t row) {
  const int lane = threadIdx.x % 32;
  int begin = 0, count = batch;
  while (count > 1) {
    const int step = (count + 31) / 32, probe = lane * step;
    const unsigned votes = __ballot_sync(0xffffffffu, probe < count && (probe == 0 || cu[begin + probe] <= row));
    const int last = 31 - __clz(static_cast<int>(votes));
    begin += last * step;
    count = count - last * step < step ? count - last * step : step;
  }
  return begin;
}

// Row `index` of the packed rows of sequence b, or of sequence b = index / longest: (b, number within it), b < 0: none.
struct OwnedRow {
  int64_t b, t;
};
__device__ __forceinline__ OwnedRow own_row(const int32_t* cu, int64_t index, int64_t longest, int sequence) {
  if (cu == nullptr) {
    const int64_t b = index / longest;
    return {b, index - b * longest};
  }
  const int64_t t = index - cu[sequence];
  if (t < 0 || index >= cu[sequence + 1] || t >= longest) return {-1, 0};
  return {sequence, t};
}

__device__ __forceinline__ RowPlace place_key(const AppendParams& p, int64_t index, int sequence) {
  const bool packed = p.cu_seqlens_new != nullptr;
  const OwnedRow own = own_row(p.cu_seqlens_new, index, p.seqlen_new, sequence);
  RowPlace place{-1, 0, 0, 0, 0};
  if (own.b < 0) return place;
  const int64_t slot = clamp_to(p.seqused_k[own.b], 0, p.capacity) + own.t;
  if (slot >= p.capacity) return place;
  if (p.page_size != 0) {
    const int64_t number = slot / p.page_size;
    place.to_batch = p.page_table[own.b * p.page_table_stride + number];
    place.to_row = slot - number * p.page_size;
    if (place.to_batch < 0 || place.to_batch >= p.num_pages) return place;
  } else {
    place.to_batch = p.batch_idx != nullptr ? p.batch_idx[own.b] : own.b;
    place.to_row = slot;
    if (place.to_batch < 0 || place.to_batch >= p.batch_kv) return place;
  }
  place.batch = packed ? 0 : own.b;
  place.row = packed ? index : own.t;
  place.position = slot;
  return place;
}

__device__ __forceinline__ RowPlace place_query(const AppendParams& p, int64_t index, int sequence) {
  const bool packed = p.cu_seqlens_q != nullptr;
  const OwnedRow own = own_row(p.cu_seqlens_q, index, p.seqlen_q, sequence);
  RowPlace place{-1, 0, 0, 0, 0};
  if (own.b < 0 || (p.seqused_q != nullptr && own.t >= p.seqused_q[own.b])) return place;
  place.batch = place.to_batch = packed ? 0 : own.b;
  place.row = place.to_row = packed ? index : own.t;
  place.position = clamp_to(p.seqused_k[own.b], 0, p.capacity) + (p.banded ? own.t : 0);
  return place;
}

__device__ __forceinline__ int64_t element_bytes(int32_t dtype) {
  return dtype == TESSERA_F32 ? 4 : (dtype == TESSERA_INT8 || dtype == TESSERA_E4M3 ? 1 : 2);
}

__device__ __forceinline__ void append_unit(const AppendParams& p, const AppendRows& x, const RowPlace& place, int head,
                                            int index) {
  const char* from = static_cast<const char*>(x.from) +
                     element_bytes(x.from_dtype) * (place.batch * x.from_stride.batch + place.row * x.from_stride.row +
                                                    head * x.from_stride.head);
  char* to = static_cast<char*>(x.to) +
             element_bytes(x.to_dtype) *
                 (place.to_batch * x.to_stride.batch + place.to_row * x.to_stride.row + head * x.to_stride.head);
  float scale = 1.0f;
  if (x.scale != nullptr) {
    const int64_t block = x.scale_rows > 0 ? place.to_row / x.scale_rows : 0;
    scale = x.scale[place.to_batch * x.scale_stride[0] + block * x.scale_stride[1] + head * x.scale_stride[2]];
  }
  if (index < x.turned_units) {
    const int64_t position = place.position < p.rotary_seqlen ? place.position : p.rotary_seqlen - 1;
    return turn_unit(p, x, from, to, index, position, scale);
  }
  const int first = 2 * x.pairs + (index - x.turned_units) * kAppendUnit;
  const int count = x.dim - first < kAppendUnit ? x.dim - first : kAppendUnit;
  if (x.from_dtype == x.to_dtype) return copy_unit(from, to, x.to_dtype, first, count, x.plain_aligned);
  store_unit(to, x.to_dtype, first, count, x.plain_aligned, scale,
             load_unit(from, x.from_dtype, first, count, x.plain_aligned));
}

__global__ void __launch_bounds__(kAppendThreads) append_kernel(const __grid_constant__ AppendParams p) {
  __shared__ int sequences[kAppendThreads];
  const int which = blockIdx.x >= p.rows[2].first_block ? 2 : (blockIdx.x >= p.rows[1].first_block ? 1 : 0);
  const AppendRows& x = p.rows[which];
  const int64_t first_row = int64_t{blockIdx.x - x.first_block} * x.rows_per_block;
  const int32_t* cu = which == 2 ? p.cu_seqlens_q : p.cu_seqlens_new;
  if (cu != nullptr) {
    for (int row = threadIdx.x / 32; row < x.rows_per_block; row += kAppendThreads / 32) {
      const int sequence = find_sequence(cu, p.batch, first_row + row);
      if (threadIdx.x % 32 == 0) sequences[row] = sequence;
    }
    __syncthreads();
  }
  const int units = x.heads * x.units, own = static_cast<int>(threadIdx.x) / units;
  const int64_t row = first_row + own;
  if (own >= x.rows_per_block || row >= x.rows) return;
  const int sequence = cu != nullptr ? sequences[own] : 0;
  const RowPlace place = which == 2 ? place_query(p, row, sequence) : place_key(p, row, sequence);
  if (place.batch < 0) return;
  for (int unit = static_cast<int>(threadIdx.x) - own * units; unit < units; unit += kAppendThreads) {
    const int head = unit / x.units;
    append_unit(p, x, place, head, unit - head * x.units);
  }
}

}  // namespace tessera::cuda
