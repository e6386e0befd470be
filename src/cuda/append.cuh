// New rows of k and v written into a cache, and q turned, in one launch: what tessera_append_args describes. A thread
// takes 8 elements, or 8 pairs that a rotary embedding turns; neighbours take neighbouring ones. It asks for them
// before it looks up where they go.
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

// Elements as they lie, for rows that are neither turned nor converted and keep every bit: whole 16-byte accesses or,
// element by element, a number each.
__device__ __forceinline__ Unit load_bits(const char* row, int32_t dtype, int first, int count, bool aligned) {
  Unit bits{};
  const bool wide = dtype == TESSERA_F32;
  const char* from = row + static_cast<int64_t>(first) * (wide ? 4 : 2);
  if (aligned && count == kAppendUnit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && !wide) break;
      const uint4 words = reinterpret_cast<const uint4*>(from)[i];
      bits.x[4 * i] = __uint_as_float(words.x), bits.x[4 * i + 1] = __uint_as_float(words.y);
      bits.x[4 * i + 2] = __uint_as_float(words.z), bits.x[4 * i + 3] = __uint_as_float(words.w);
    }
    return bits;
  }
#pragma unroll
  for (int i = 0; i < kAppendUnit; ++i) {
    if (i >= count) break;
    bits.x[i] = __uint_as_float(wide ? reinterpret_cast<const uint32_t*>(from)[i]
                                     : uint32_t{reinterpret_cast<const uint16_t*>(from)[i]});
  }
  return bits;
}
__device__ __forceinline__ void store_bits(char* row, int32_t dtype, int first, int count, bool aligned,
                                           const Unit& bits) {
  const bool wide = dtype == TESSERA_F32;
  char* to = row + static_cast<int64_t>(first) * (wide ? 4 : 2);
  if (aligned && count == kAppendUnit) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && !wide) break;
      reinterpret_cast<uint4*>(to)[i] =
          make_uint4(__float_as_uint(bits.x[4 * i]), __float_as_uint(bits.x[4 * i + 1]),
                     __float_as_uint(bits.x[4 * i + 2]), __float_as_uint(bits.x[4 * i + 3]));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kAppendUnit; ++i) {
    if (i >= count) break;
    if (wide) {
      reinterpret_cast<uint32_t*>(to)[i] = __float_as_uint(bits.x[i]);
    } else {
      reinterpret_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(__float_as_uint(bits.x[i]));
    }
  }
}

// What a thread takes of a head's row: 8 elements, or pairs [pair, pair + 8) that are turned, neighbours (the 2 * 8
// elements from 2 pair on) or halves (8 elements of either).
struct Piece {
  int pair;  // below 0: none is turned
  int first, first_count, second, second_count;
  Unit low, high;
};

__device__ __forceinline__ Piece load_piece(const AppendParams& p, const AppendRows& x, const char* from, int index) {
  Piece piece{-1, 0, 0, 0, 0, {}, {}};
  if (index < x.turned_units) {
    piece.pair = index * kAppendUnit;
    const int count = x.pairs - piece.pair < kAppendUnit ? x.pairs - piece.pair : kAppendUnit;
    const bool interleaved = p.rotary_interleaved != 0;
    piece.first = interleaved ? 2 * piece.pair : piece.pair;
    piece.second = interleaved ? piece.first + kAppendUnit : piece.pair + x.pairs;
    piece.first_count = interleaved ? (2 * count < kAppendUnit ? 2 * count : kAppendUnit) : count;
    piece.second_count = interleaved ? 2 * count - piece.first_count : count;
    piece.low = load_unit(from, x.from_dtype, piece.first, piece.first_count, x.turned_aligned);
    piece.high = load_unit(from, x.from_dtype, piece.second, piece.second_count, x.turned_aligned);
    return piece;
  }
  piece.first = 2 * x.pairs + (index - x.turned_units) * kAppendUnit;
  piece.first_count = x.dim - piece.first < kAppendUnit ? x.dim - piece.first : kAppendUnit;
  piece.low = x.from_dtype == x.to_dtype
                  ? load_bits(from, x.from_dtype, piece.first, piece.first_count, x.plain_aligned)
                  : load_unit(from, x.from_dtype, piece.first, piece.first_count, x.plain_aligned);
  return piece;
}

__device__ __forceinline__ void turn_piece(const AppendParams& p, const AppendRows& x, Piece& piece, int64_t position) {
  const int count = x.pairs - piece.pair < kAppendUnit ? x.pairs - piece.pair : kAppendUnit;
  const int64_t table_row = position * x.pairs * (p.rotary_dtype == TESSERA_F32 ? 4 : 2);
  const Unit cos =
      load_unit(static_cast<const char*>(p.cos) + table_row, p.rotary_dtype, piece.pair, count, p.tables_aligned);
  const Unit sin =
      load_unit(static_cast<const char*>(p.sin) + table_row, p.rotary_dtype, piece.pair, count, p.tables_aligned);
  const auto turn = [&](int i, float& a, float& b) {
    const float from_a = a, from_b = b;
    a = __fsub_rn(__fmul_rn(from_a, cos.x[i]), __fmul_rn(from_b, sin.x[i]));
    b = __fadd_rn(__fmul_rn(from_a, sin.x[i]), __fmul_rn(from_b, cos.x[i]));
  };
  if (p.rotary_interleaved != 0) {
#pragma unroll
    for (int i = 0; i < kAppendUnit / 2; ++i) {
      turn(i, piece.low.x[2 * i], piece.low.x[2 * i + 1]);
      turn(i + 4, piece.high.x[2 * i], piece.high.x[2 * i + 1]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kAppendUnit; ++i) turn(i, piece.low.x[i], piece.high.x[i]);
  }
}

// Where a row goes, and its position. batch < 0: nowhere.
struct RowPlace {
  int64_t batch, row;
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
__device__ __forceinline__ OwnedRow own_row(const int32_t* cu, uint32_t index, const Divisor& longest, int sequence) {
  if (cu == nullptr) {
    const uint32_t b = longest.divide(index);
    return {b, index - b * longest.value};
  }
  const int64_t t = int64_t{index} - cu[sequence];
  if (t < 0 || int64_t{index} >= cu[sequence + 1] || t >= longest.value) return {-1, 0};
  return {sequence, t};
}

__device__ __forceinline__ RowPlace place_key(const AppendParams& p, const OwnedRow& own) {
  const int64_t slot = clamp_to(p.seqused_k[own.b], 0, p.capacity) + own.t;
  RowPlace place{-1, slot, slot};
  if (slot >= p.capacity) return place;
  int64_t limit = p.batch_kv;
  if (p.page_size.value != 0) {
    const uint32_t number = p.page_size.divide(static_cast<uint32_t>(slot));
    place.batch = p.page_table[own.b * p.page_table_stride + number];
    place.row = slot - number * p.page_size.value;
    limit = p.num_pages;
  } else {
    place.batch = p.batch_idx != nullptr ? p.batch_idx[own.b] : own.b;
  }
  if (place.batch >= limit) place.batch = -1;
  return place;
}

__device__ __forceinline__ RowPlace place_query(const AppendParams& p, const OwnedRow& own, uint32_t index) {
  RowPlace place{-1, 0, 0};
  if (p.seqused_q != nullptr && own.t >= p.seqused_q[own.b]) return place;
  const bool packed = p.cu_seqlens_q != nullptr;
  place.batch = packed ? 0 : own.b;
  place.row = packed ? index : own.t;
  place.position = clamp_to(p.seqused_k[own.b], 0, p.capacity) + (p.banded ? own.t : 0);
  return place;
}

__device__ __forceinline__ int64_t element_bytes(int32_t dtype) {
  return dtype == TESSERA_F32 ? 4 : (dtype == TESSERA_INT8 || dtype == TESSERA_E4M3 ? 1 : 2);
}

__device__ __forceinline__ void store_piece(const AppendParams& p, const AppendRows& x, const RowPlace& place, int head,
                                            Piece& piece) {
  char* to = static_cast<char*>(x.to) +
             element_bytes(x.to_dtype) *
                 (place.batch * x.to_stride.batch + place.row * x.to_stride.row + head * x.to_stride.head);
  float scale = 1.0f;
  if (x.scale != nullptr) {
    const int64_t block = x.scale_rows.divide(static_cast<uint32_t>(place.row));
    scale = x.scale[place.batch * x.scale_stride[0] + block * x.scale_stride[1] + head * x.scale_stride[2]];
  }
  if (piece.pair >= 0) {
    turn_piece(p, x, piece, place.position < p.rotary_seqlen ? place.position : p.rotary_seqlen - 1);
    store_unit(to, x.to_dtype, piece.first, piece.first_count, x.turned_aligned, scale, piece.low);
    store_unit(to, x.to_dtype, piece.second, piece.second_count, x.turned_aligned, scale, piece.high);
  } else if (x.from_dtype == x.to_dtype) {
    store_bits(to, x.to_dtype, piece.first, piece.first_count, x.plain_aligned, piece.low);
  } else {
    store_unit(to, x.to_dtype, piece.first, piece.first_count, x.plain_aligned, scale, piece.low);
  }
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
  const auto row_of_block = static_cast<int>(x.row_units.divide(threadIdx.x));
  const int64_t row = first_row + row_of_block;
  if (row_of_block >= x.rows_per_block || row >= x.rows) return;
  const OwnedRow own = own_row(cu, static_cast<uint32_t>(row), which == 2 ? p.seqlen_q : p.seqlen_new,
                               cu != nullptr ? sequences[row_of_block] : 0);
  if (own.b < 0) return;
  const char* from =
      static_cast<const char*>(x.from) +
      element_bytes(x.from_dtype) *
          (cu != nullptr ? row * x.from_stride.row : own.b * x.from_stride.batch + own.t * x.from_stride.row);
  for (uint32_t unit = threadIdx.x - row_of_block * x.row_units.value; unit < x.row_units.value;
       unit += kAppendThreads) {
    const uint32_t head = x.units.divide(unit);
    // What is read is asked for before lengths and tables say where it goes.
    Piece piece = load_piece(p, x, from + element_bytes(x.from_dtype) * head * x.from_stride.head,
                             static_cast<int>(unit - head * x.units.value));
    const RowPlace place = which == 2 ? place_query(p, own, static_cast<uint32_t>(row)) : place_key(p, own);
    if (place.batch >= 0) store_piece(p, x, place, static_cast<int>(head), piece);
  }
}

}  // namespace tessera::cuda
