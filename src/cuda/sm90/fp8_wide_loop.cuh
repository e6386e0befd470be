// The loop over key tiles of an e4m3 consumer at head dim 256. Accumulators of o are 128 registers, which leave no room
// for the next scores beside a tile's product, as at 128 (fp8_consumer.cuh). So a warpgroup multiplies p v, then the
// next q k^T, then works on the scores, and while it does the other warpgroup's products run: they take turns.
// p v comes in four pieces of V^T's rows, the scores in two halves of the keys, by turns in the two parts of one array:
// while a product is under way in one, the other's is added to o. The parts stay where they are from product to product
// (kInPlace): accumulators of wgmma are neighbours, and o would have to make way for them.
#pragma once

#include "fp8_consumer.cuh"

namespace tessera::cuda::sm90 {

template <class Config>
struct Fp8WideLoop {
  static_assert(Config::kDimV == 256 && Config::kTileN == 128);
  using Consumer = Fp8Consumer<Config>;
  using Probs = typename Consumer::Probs;
  using Accumulators = typename Consumer::Accumulators;
  // Scores, or products of p and rows of V^T: eight blocks of columns, and eight with those of the ones.
  using Parts = float[17][4];

  Consumer& c;
  Accumulators& acc;
  Fp8Rows& rows;

  __device__ __forceinline__ static float (&upper(Parts& parts))[8][4] {
    return reinterpret_cast<float(&)[8][4]>(parts[0]);
  }
  template <int kBlocks = 8>
  __device__ __forceinline__ static float (&lower(Parts& parts))[kBlocks][4] {
    return reinterpret_cast<float(&)[kBlocks][4]>(parts[8]);
  }
  __device__ __forceinline__ static typename Consumer::Scores& scores(Parts& parts) {
    return reinterpret_cast<typename Consumer::Scores&>(parts);
  }

  template <int kFirst, int kBlocks>
  __device__ __forceinline__ void multiply(float (&part)[kBlocks][4], const Probs& probs) const {
    ptx::wgmma_fence();
    c.template multiply_probs_value<kFirst, true>(part, probs);
    ptx::wgmma_commit();
  }
  // Waits for all products but the latest kLater, and adds those of `part`.
  template <int kFirst, int kLater, int kBlocks>
  __device__ __forceinline__ void add(float (&part)[kBlocks][4]) const {
    ptx::wgmma_wait<kLater>();
    ptx::pin(part);
    c.template accumulate<kFirst>(part, acc, rows);
  }
  // p v of the current stage, but for the last piece, which is under way in the lower part.
  __device__ __forceinline__ void multiply_most(Parts& parts, const Probs& probs) const {
    multiply<0>(upper(parts), probs);
    multiply<192>(lower<9>(parts), probs);
    add<0, 1>(upper(parts));
    multiply<64>(upper(parts), probs);
    add<192, 1>(lower<9>(parts));
    multiply<128>(lower(parts), probs);
    add<64, 1>(upper(parts));
  }

  // All key tiles of the view, in order. On return acc and rows hold the unnormalised state.
  __device__ __forceinline__ void run(const typename Consumer::Tiles& keys, bool odd) const {
    Parts parts;
    Probs probs;
    // In place as in every step: the parts then lie where they will stay.
    issue_first<Config>(
        c, [&]() __attribute__((always_inline)) {
          c.template multiply_query_key<0, true>(upper(parts));
          c.template multiply_query_key<64, true>(lower(parts));
        });
    c.template finish_scores<0>(scores(parts));
    c.begin_rows(keys, odd, scores(parts), rows, probs);
    const auto advance = [&]<bool kMasked>(int tile) __attribute__((always_inline)) {
      wait(c.control.transposed_full[c.v.stage], c.v.phase);
      wait(c.control.k_full[c.k.stage], c.k.phase);
      wait_turn<Config>(c.group);
      multiply_most(parts, probs);
      ptx::wgmma_fence();
      c.template multiply_query_key<0, true>(upper(parts));
      ptx::wgmma_commit();
      add<128, 1>(lower(parts));
      leave(c.control.transposed_empty, c.v);
      ptx::wgmma_fence();
      c.template multiply_query_key<64, true>(lower(parts));
      ptx::wgmma_commit();
      pass_turn<Config>(c.group);
      c.template finish_scores<0>(scores(parts));
      c.multiply_odd(scores(parts));
      if constexpr (kMasked) c.mask(scores(parts), tile);
      const float scale[2] = {c.notes().scale[0], c.notes().scale[1]};
      const Fp8Exponents with = find_exponents<Config::kShift>(scores(parts), rows, scale);
      exponentiate<Consumer::kChunk, false>(scores(parts), with, [](int, const float(&)[2]) {});
      c.pack_probs(scores(parts), probs);
    };
    c.for_each_next(keys, advance);
    leave(c.control.q_empty, c.q);

    wait(c.control.transposed_full[c.v.stage], c.v.phase);
    multiply_most(parts, probs);
    add<128, 0>(lower(parts));
    leave(c.control.transposed_empty, c.v);
  }
};

}  // namespace tessera::cuda::sm90
