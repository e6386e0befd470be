// A consumer warpgroup of e4m3: as consumer.cuh, but for chains of tiles (run_pieces), and with p v of one key tile in
// arithmetic adds to those of the tiles before. The tensor cores sum e4m3's products in short accumulators: one sum
// over 16384 keys whose values have a mean lost 19 % of it, two levels 0.1 % (docs/notes/hopper.md).
#pragma once

#include "../ptx/convert.cuh"
#include "../ptx/wgmma.cuh"
#include "../tile/score.cuh"
#include "fp8_control.cuh"
#include "fp8_epilogue.cuh"
#include "fp8_softmax.cuh"
#include "issue_turns.cuh"
#include "mask.cuh"

namespace tessera::cuda::sm90 {

template <class Config>
struct Fp8WideLoop;

template <class Config>
struct Fp8Consumer {
  static constexpr int kSpan = Config::kSpan, kSteps = kSpan / 32;  // products of 32 columns in a span
  static constexpr int kKeySpan = kFp8KeySpan, kKeySteps = kKeySpan / 32;
  static constexpr int kChunk = 4;  // blocks of 8 keys whose exponentials are taken at a time
  // Whether a warpgroup leaves out a view's last tile where none of its rows sees a key of it.
  static constexpr bool kTrims = Config::kChains && Config::kTileM > Config::kTileN;
  using Scores = float[Config::kTileN / 8][4];
  using Probs = uint32_t[Config::kTileN / 32][4];
  using Product = float[Config::kValueRows / 8][4];  // of p and v, the last eight columns p's sums
  using Accumulators = float[Config::kDimV / 8][4];

  const Params& p;
  Fp8Control<Config>& control;
  char* tiles;
  uint32_t shared;  // address of the tiles
  int group;        // of the consumers, counted from 0
  Ring<Config::kStages> k, v;
  Ring<Config::kQueryStages> q;
  Ring<Control<Config>::kViews> views;
  uint32_t noted;  // which of the thread's notes are of the current view

  // Issues scores = q k^T of the current stages, of the keys from kFirst on. kInPlace: what the registers held counts
  // as read, so that they stay the same ones from product to product.
  template <int kFirst = 0, bool kInPlace = false, int kBlocks>
  __device__ __forceinline__ void multiply_query_key(float (&scores)[kBlocks][4]) const {
    constexpr int kKeys = 8 * kBlocks;
    const uint64_t a = ptx::matrix_descriptor<kSpan>(shared + q.stage * Config::kQueryBytes + group * 64 * kSpan, 16);
    const uint64_t b =
        ptx::matrix_descriptor<kSpan>(shared + Config::kKeyOffset + k.stage * Config::kKeyBytes + kFirst * kSpan, 16);
    if constexpr (kInPlace) {
      ptx::wgmma_bytes_shared<kKeys>(scores, a, b, 0);
    } else {
      ptx::wgmma_bytes_shared_first<kKeys>(scores, a, b);
    }
#pragma unroll
    for (int step = 1; step < Config::kDimQk / 32; ++step) {
      const int span = step / kSteps, inner = step % kSteps * 32;
      ptx::wgmma_bytes_shared<kKeys>(scores, a + (span * Config::kTileM * kSpan + inner) / 16,
                                     b + (span * Config::kTileN * kSpan + inner) / 16, 1);
    }
  }

  // Issues product = p v of the current stage, of the rows of V^T from kFirst on. kInPlace as above.
  template <int kFirst = 0, bool kInPlace = false, int kBlocks>
  __device__ __forceinline__ void multiply_probs_value(float (&product)[kBlocks][4], const Probs& probs) const {
    constexpr int kRows = 8 * kBlocks;
    const uint64_t b = ptx::matrix_descriptor<kKeySpan>(
        shared + Config::kTransposedOffset + v.stage * Config::kTransposedBytes + kFirst * kKeySpan, 16);
    if constexpr (kInPlace) {
      ptx::wgmma_bytes_registers<kRows>(product, probs[0], b, 0);
    } else {
      ptx::wgmma_bytes_registers_first<kRows>(product, probs[0], b);
    }
#pragma unroll
    for (int step = 1; step < Config::kTileN / 32; ++step) {
      const int span = step / kKeySteps, inner = step % kKeySteps * 32;
      ptx::wgmma_bytes_registers<kRows>(product, probs[step], b + (span * Config::kValueRows * kKeySpan + inner) / 16,
                                        1);
    }
  }

  // Scores' registers of four blocks of 8 keys as they come are an operand's of 32 keys in the order of V^T's tiles:
  // bytes 4 q + 2 j + e of 16 are keys 8 j + 2 q + e.
  __device__ __forceinline__ static void pack_probs(const Scores& scores, Probs& probs) {
#pragma unroll
    for (int step = 0; step < Config::kTileN / 32; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int block = 4 * step + i / 2 * 2, e = i % 2 * 2;
        probs[step][i] =
            ptx::pack_e4m3(scores[block][e], scores[block][e + 1], scores[block + 1][e], scores[block + 1][e + 1]);
      }
    }
  }

  // Of the rows of V^T from kFirst on, the last eight those of ones.
  template <int kFirst, int kBlocks>
  __device__ __forceinline__ static void accumulate(const float (&product)[kBlocks][4], Accumulators& acc,
                                                    Fp8Rows& rows) {
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
      const int block = kFirst / 8 + n;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (block < Config::kDimV / 8) {
          acc[block][e] = fmaf(acc[block][e], rows.correction[e / 2], product[n][e]);
        } else if (e % 2 == 0) {
          rows.row_sum[e / 2] = fmaf(rows.row_sum[e / 2], rows.correction[e / 2], product[n][e]);
        }
      }
    }
  }
  // Adds p v of a tile, of rows whose bases stay; with a factor where they changed behind it.
  __device__ __forceinline__ static void add_product(const Product& product, Accumulators& acc, Fp8Rows& rows) {
    constexpr int kBlocks = Config::kDimV / 8;
#pragma unroll
    for (int n = 0; n < kBlocks; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] += product[n][e];
    }
    rows.row_sum[0] += product[kBlocks][0];
    rows.row_sum[1] += product[kBlocks][2];
  }
  __device__ __forceinline__ static void add_product(const Product& product, Accumulators& acc, Fp8Rows& rows,
                                                     const float (&factor)[2], int begin, int end) {
#pragma unroll
    for (int n = begin; n < end; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (n < Config::kDimV / 8) {
          acc[n][e] = fmaf(product[n][e], factor[e / 2], acc[n][e]);
        } else if (e % 2 == 0) {
          rows.row_sum[e / 2] = fmaf(product[n][e], factor[e / 2], rows.row_sum[e / 2]);
        }
      }
    }
  }

  // Of this warp in the tile.
  __device__ __forceinline__ int first_row() const { return group * 64 + static_cast<int>(threadIdx.x / 32 % 4) * 16; }
  __device__ __forceinline__ int row_of(int half) const { return first_row() + fragment_row(0, half); }

  // What the scores of a lane's row are multiplied by, in base 2.
  __device__ __forceinline__ float find_scale(const TileView& view, int half) const {
    const Fp8Params& f = p.fp8;
    float scale = view.score_scale;
    if (f.q_scaled_by_row) [[unlikely]] {
      const int r = row_of(half), row = static_cast<int>(p.by_pack.divide(r)), head = view.head + r - row * p.pack;
      // Rows past the last have none.
      const int64_t i = view.first_row + row < p.forward.seqlen_q ? view.first_row + row : p.forward.seqlen_q - 1;
      scale *=
          f.q_scale
              .data[view.batch * f.q_scale.stride[0] +
                    f.q_scale.rows.divide(static_cast<uint32_t>(i)) * f.q_scale.stride[1] + head * f.q_scale.stride[2]];
    }
    return scale;
  }

  // Where the keys that a row of the tile keeps end.
  __device__ __forceinline__ static int kept_end(const TileView& view, int row) {
    const int end = view.keys_end + row;
    return end < view.key_count ? end : view.key_count;
  }

  // Of the current view; kNext: of the one behind it.
  template <bool kNext = false>
  __device__ __forceinline__ Fp8Notes& notes() const {
    const uint32_t place = Config::kNotes == 1 ? 0 : (noted ^ kNext) * (128 * Config::kGroups);
    return reinterpret_cast<Fp8Notes*>(tiles + Config::kNotesOffset)[place + threadIdx.x - 128];
  }
  // Writes the thread's notes. True: some row of the warp has an odd scale.
  template <bool kNext = false>
  __device__ __forceinline__ bool take_notes(const TileView& view) const {
    Fp8Notes& out = notes<kNext>();
    bool odd = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (Config::kChains) {
        const int row = static_cast<int>(p.by_pack.divide(row_of(half)));
        out.begin[half] = view.keys_begin + row;
        out.end[half] = kept_end(view, row);
      }
      const float scale = find_scale(view, half);
      out.scale[half] = out.first_scale[half] = scale;
      odd |= !(scale > 1e-30f && scale < 1e30f);
    }
    odd = __any_sync(0xffffffffu, odd);
    if (odd) out.scale[0] = out.scale[1] = 1.0f;
    out.odd = odd ? -1 : 0;
    return odd;
  }

  __device__ __forceinline__ void multiply_odd(Scores& scores) const {
    const Fp8Notes& own = notes();
    if (__any_sync(0xffffffffu, own.odd < 0)) {
#pragma unroll
      for (int n = 0; n < Config::kTileN / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) scores[n][e] *= own.first_scale[e / 2];
      }
    }
  }

  // Replaces the scores of a tile that the rows do not keep by -inf.
  __device__ __forceinline__ void mask(Scores& scores, int tile) const {
    const int key = tile * Config::kTileN;
    if constexpr (Config::kChains) {
      const Fp8Notes& own = notes();
#pragma unroll
      for (int half = 0; half < 2; ++half) keep_columns(scores, half, own.begin[half] - key, own.end[half] - key);
    } else {  // by another way at d 256, where with the notes the assembler serialises the products (C7511)
      const TileView& own = view();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = static_cast<int>(p.by_pack.divide(row_of(half)));
        const int end = kept_end(own, row);
        keep_columns(scores, half, own.keys_begin + row - key, end - key);
      }
    }
  }

  // Tiles [begin, end) of a view, of which [unmasked_begin, unmasked_end) need no mask.
  struct Tiles {
    int begin, end, unmasked_begin, unmasked_end;
    bool rests;  // the view has one more tile, of which the warpgroup's rows see nothing
    int left;    // tiles behind that, of a warpgroup that has no rows
  };
  // for_each_tile() behind the first one.
  template <class Advance>
  __device__ __forceinline__ static void for_each_next(const Tiles& keys, const Advance& advance) {
    for_each_tile(keys.begin + 1, keys.unmasked_begin, keys.unmasked_end, keys.end, advance);
  }

  // Issues the products of a step, scores = q k^T of the current stages and product = p v. Where they overlap the
  // scores come first, but for the next tile's (kNext): then the rows leave under them. Else p v is over before them.
  template <bool kNext>
  __device__ __forceinline__ void issue(Scores& scores, Product& product, const Probs& probs) {
    constexpr bool kValuesFirst = kNext || !Config::kOverlaps;
    wait(control.k_full[k.stage], k.phase);
    if (kValuesFirst) wait(control.transposed_full[v.stage], v.phase);
    wait_turn<Config>(group);
    ptx::wgmma_fence();
    if constexpr (kValuesFirst) {
      multiply_probs_value(product, probs);
      ptx::wgmma_commit();
      if constexpr (!Config::kOverlaps) {
        finish_product(product);
        ptx::wgmma_fence();
      }
    }
    multiply_query_key(scores);
    ptx::wgmma_commit();
    if constexpr (!kValuesFirst) {
      wait(control.transposed_full[v.stage], v.phase);
      multiply_probs_value(product, probs);
      ptx::wgmma_commit();
    }
    pass_turn<Config>(group);
  }
  // Waits for the scores of a step, which leaves their stage of K.
  template <int kPending>
  __device__ __forceinline__ void finish_scores(Scores& scores) {
    ptx::wgmma_wait<kPending>();
    ptx::pin(scores);
    leave(control.k_empty, k);
  }
  template <int kPending = 0>
  __device__ __forceinline__ void finish_product(Product& product) {
    ptx::wgmma_wait<kPending>();
    ptx::pin(product);
    leave(control.transposed_empty, v);
  }

  // Scores of a view's first tile to probabilities.
  __device__ __forceinline__ void begin_rows(const Tiles& keys, bool odd, Scores& scores, Fp8Rows& rows,
                                             Probs& probs) const {
    if (!Config::kChains || odd) multiply_odd(scores);  // at d 256 the flag makes the assembler serialise (C7511)
    if (keys.begin < keys.unmasked_begin || keys.begin >= keys.unmasked_end) mask(scores, keys.begin);
    const float scale[2] = {notes().scale[0], notes().scale[1]};
    const Fp8Exponents with = find_exponents<Config::kShift>(scores, rows, scale);
    if (Config::kLazy) note_shifts<Config::kShift>(notes(), rows);
    exponentiate<kChunk>(scores, with, [](int, const float(&)[2]) {});
    pack_probs(scores, probs);
  }

  // Scores of a view's later tile to probabilities; `product`, p v of the tile before, goes to acc: at once, or where
  // they overlap between the exponentials, relative to the base that was.
  template <bool kMasked>
  __device__ __forceinline__ void advance_rows(Scores& scores, Product& product, int tile, Accumulators& acc,
                                               Fp8Rows& rows, Probs& probs) {
    if (!Config::kOverlaps) add_product(product, acc, rows);
    const Fp8Notes& own = notes();
    Fp8Exponents with{{own.scale[0], own.scale[1]}, {own.shift[0], own.shift[1]}};
    const bool odd = kMasked && __any_sync(0xffffffffu, own.odd < 0);
    finish_scores<Config::kOverlaps ? 1 : 0>(scores);
    // Before the mask, so that what is masked stays so.
    if (odd) multiply_odd(scores);
    if constexpr (kMasked) mask(scores, tile);
    float correction[2] = {1.0f, 1.0f};
    if (exceeds(scores, with)) [[unlikely]] {
      if (!kMasked) multiply_odd(scores);
      change_bases<Config::kShift>(scores, rows, acc, notes(), with);
      correction[0] = rows.correction[0];
      correction[1] = rows.correction[1];
    }
    if (Config::kOverlaps) finish_product(product);
    exponentiate<kChunk>(
        scores,
        with, [&]([[maybe_unused]] int chunk, [[maybe_unused]] const float(&first)[2]) __attribute__((always_inline)) {
          if constexpr (Config::kOverlaps) {
            constexpr int kBlocks = Config::kValueRows / 8, kChunks = Config::kTileN / 8 / kChunk;
            const float factor[2] = {behind(first[0], correction[0]), behind(first[1], correction[1])};
            add_product(product, acc, rows, factor, kBlocks * chunk / kChunks, kBlocks * (chunk + 1) / kChunks);
          }
        });
    pack_probs(scores, probs);
  }

  // The view's tiles, and those of the views behind it as long as they have some: the first product of a piece of work
  // is issued with the last of the one before, whose rows leave under it and the other warpgroups' products. On return
  // acc and rows hold the last piece's unnormalised state. `odd`: as take_notes says of the view.
  __device__ __forceinline__ void run_pieces(Tiles keys, bool odd, Accumulators& acc, Fp8Rows& rows) {
    Scores scores;
    Product product;
    Probs probs;
    issue_first<Config>(
        *this, [&]() __attribute__((always_inline)) { multiply_query_key(scores); });
    finish_scores<0>(scores);
    begin_rows(keys, odd, scores, rows, probs);

    const auto advance = [&]<bool kMasked>(int tile) __attribute__((always_inline)) {
      issue<false>(scores, product, probs);
      advance_rows<kMasked>(scores, product, tile, acc, rows, probs);
    };
    while (true) {
      for_each_next(keys, advance);
      const bool rests = kTrims && keys.rests;
      if (rests) leave_key();
      if constexpr (kTrims) {
        for (; keys.left > 0; --keys.left) {
          leave_key();
          leave_value();
        }
      }
      leave(control.q_empty, q);
      Ring<Control<Config>::kViews> next = views;
      next.advance();
      wait(control.view_full[next.stage], next.phase);
      const TileView& next_view = control.views[next.stage];
      if (!__any_sync(0xffffffffu, next_view.valid && next_view.tiles.begin < next_view.tiles.end)) break;

      wait(control.q_full[q.stage], q.phase);
      issue<true>(scores, product, probs);
      keys = find_tiles(next_view);
      odd = take_notes<true>(next_view);
      if (Config::kOverlaps) finish_product<1>(product);
      if (rests) leave_value();
      add_product(product, acc, rows);
      finish_piece(acc, rows);
      noted ^= 1;
      clear(acc, rows);
      finish_scores<0>(scores);
      begin_rows(keys, odd, scores, rows, probs);
    }

    wait(control.transposed_full[v.stage], v.phase);
    ptx::wgmma_fence();
    multiply_probs_value(product, probs);
    ptx::wgmma_commit();
    finish_product(product);
    if (kTrims && keys.rests) leave_value();
    add_product(product, acc, rows);
  }

  // A tile that is the other warpgroups' alone: our turn at it passes, its stages are left unread.
  __device__ __forceinline__ void leave_key() {
    skip(control.k_full, control.k_empty, k);
    skip_turn<Config>(group);
  }
  __device__ __forceinline__ void leave_value() { skip(control.transposed_full, control.transposed_empty, v); }

  __device__ __forceinline__ static void clear(Accumulators& acc, Fp8Rows& rows) {
#pragma unroll
    for (int n = 0; n < Config::kDimV / 8; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
    rows.row_max[0] = rows.row_max[1] = -INFINITY;
    rows.row_sum[0] = rows.row_sum[1] = rows.correction[0] = rows.correction[1] = 0.0f;
  }

  __device__ __forceinline__ const TileView& view() const { return control.views[views.stage]; }
  __device__ __forceinline__ Tiles find_tiles(const TileView& view) const {
    const core::TileRange& keys = view.tiles;
    Tiles out{uniform(static_cast<int>(keys.begin)),
              uniform(static_cast<int>(keys.end)),
              uniform(static_cast<int>(keys.unmasked_begin)),
              uniform(static_cast<int>(keys.unmasked_end)),
              false,
              0};
    if constexpr (kTrims) {
      const auto first = static_cast<int>(p.by_pack.divide(group * 64));
      auto last = static_cast<int>(p.by_pack.divide(group * 64 + 63));
      if (last >= view.query_count) last = view.query_count - 1;
      const int first_end = kept_end(view, first), last_end = kept_end(view, last);
      out.unmasked_end = uniform(first_end > 0 ? first_end / Config::kTileN : 0);
      if (out.end - out.begin > 1) {
        if (uniform(last < first)) {
          out.left = out.end - out.begin - 1;
          out.end = out.begin + 1;
        } else if (uniform(last_end) <= (out.end - 1) * Config::kTileN) {
          out.rests = true;
          --out.end;
        }
      }
      if (out.unmasked_begin > out.end) out.unmasked_begin = out.end;
      if (out.unmasked_end > out.end) out.unmasked_end = out.end;
    }
    return out;
  }

  // Stores the rows of the current view and leaves it.
  __device__ __forceinline__ void finish_piece(Accumulators& acc, const Fp8Rows& rows) {
    const float scale[2] = {notes().scale[0], notes().scale[1]};
    fp8_epilogue(p, view(), place_fp8_rows(p, view(), first_row()), acc, rows, scale, 1.0f / (1 << Config::kShift));
    __syncwarp();  // the scheduler overwrites the view, which lanes that store alone may still read
    leave(control.view_empty, views);
  }

  __device__ __forceinline__ void run() {
    open_turns<Config>(group);
    while (true) {
      wait(control.view_full[views.stage], views.phase);
      const TileView& first = view();
      if (!uniform(first.valid)) return;
      Accumulators acc;
      Fp8Rows rows;
      clear(acc, rows);
      Tiles keys = find_tiles(first);
      if (keys.begin < keys.end) {
        const bool odd = take_notes(first);
        if constexpr (Config::kChains) {
          run_pieces(keys, odd, acc, rows);
        } else {
          Fp8WideLoop<Config>{*this, acc, rows}.run(keys, odd);
        }
      }
      finish_piece(acc, rows);
    }
  }
};

}  // namespace tessera::cuda::sm90
