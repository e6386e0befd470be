#include "warp.hpp"

#include <cstring>

#include "half.hpp"

namespace tessera::emulator {
namespace {

// d += a b of 16 x 8 x 16: products of 16-bit numbers are exact in f32, sums are f32 from the lowest k to the highest.
// The fragments are laid out as ptx/mma.cuh states.
template <float (*kValue)(uint16_t)>
void multiply(void* const* operands, uint32_t) {
  float a[16][16], b[16][8], d[16][8];
  const auto unpack = [](uint32_t pair, float* low, float* high) {
    *low = kValue(static_cast<uint16_t>(pair));
    *high = kValue(static_cast<uint16_t>(pair >> 16));
  };
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& given = *static_cast<const MmaOperand*>(operands[lane]);
    const int g = lane / 4, t = lane % 4 * 2;
    for (int i = 0; i < 4; ++i) {
      float* const at = &a[g + i % 2 * 8][t + i / 2 * 8];
      unpack(given.a[i], at, at + 1);
    }
    unpack(given.b0, &b[t][g], &b[t + 1][g]);
    unpack(given.b1, &b[t + 8][g], &b[t + 9][g]);
    for (int i = 0; i < 4; ++i) d[g + i / 2 * 8][t + i % 2] = given.d[i];
  }
  for (int m = 0; m < 16; ++m) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8; ++n) d[m][n] += a[m][k] * b[k][n];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& given = *static_cast<const MmaOperand*>(operands[lane]);
    for (int i = 0; i < 4; ++i) given.d[i] = d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

void load(void* const* operands, uint32_t) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& taken = *static_cast<const LoadOperand*>(operands[lane]);
    for (int i = 0; i < 4; ++i) {
      const char* row = static_cast<const LoadOperand*>(operands[i * 8 + lane / 4])->row;
      std::memcpy(&taken.r[i], row + lane % 4 * 4, 4);
    }
  }
}

void load_transposed(void* const* operands, uint32_t) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& taken = *static_cast<const LoadOperand*>(operands[lane]);
    for (int i = 0; i < 4; ++i) {
      uint16_t pair[2];
      for (int e = 0; e < 2; ++e) {
        const char* row = static_cast<const LoadOperand*>(operands[i * 8 + lane % 4 * 2 + e])->row;
        std::memcpy(&pair[e], row + lane / 4 * 2, 2);
      }
      taken.r[i] = pair[0] | uint32_t{pair[1]} << 16;
    }
  }
}

void store(void* const* operands, uint32_t) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& given = *static_cast<const StoreOperand*>(operands[lane]);
    for (int i = 0; i < 4; ++i) {
      char* row = static_cast<const StoreOperand*>(operands[i * 8 + lane / 4])->row;
      std::memcpy(row + lane % 4 * 4, &given.r[i], 4);
    }
  }
}

void store_transposed(void* const* operands, uint32_t) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& given = *static_cast<const StoreOperand*>(operands[lane]);
    for (int i = 0; i < 4; ++i) {
      for (int e = 0; e < 2; ++e) {
        const auto element = static_cast<uint16_t>(given.r[i] >> 16 * e);
        char* row = static_cast<const StoreOperand*>(operands[i * 8 + lane % 4 * 2 + e])->row;
        std::memcpy(row + lane / 4 * 2, &element, 2);
      }
    }
  }
}

void shuffle(void* const* operands, uint32_t mask) {
  uint64_t values[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    if (mask >> lane & 1) values[lane] = static_cast<const ShuffleOperand*>(operands[lane])->value;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    auto& given = *static_cast<ShuffleOperand*>(operands[lane]);
    // What a lane outside of the mask holds is undefined.
    given.value = mask >> given.source & 1 ? values[given.source] : ~uint64_t{0};
  }
}

void count_votes(void* const* operands, uint32_t mask) {
  uint32_t ballot = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (mask >> lane & 1) ballot |= uint32_t{static_cast<const VoteOperand*>(operands[lane])->predicate} << lane;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (mask >> lane & 1) static_cast<VoteOperand*>(operands[lane])->ballot = ballot;
  }
}

}  // namespace

const WarpOperation kMmaF16{"mma.sync f16", true, multiply<from_f16>};
const WarpOperation kMmaBf16{"mma.sync bf16", true, multiply<from_bf16>};
const WarpOperation kLoadMatrix{"ldmatrix", true, load};
const WarpOperation kLoadMatrixTransposed{"ldmatrix.trans", true, load_transposed};
const WarpOperation kStoreMatrix{"stmatrix", true, store};
const WarpOperation kStoreMatrixTransposed{"stmatrix.trans", true, store_transposed};
const WarpOperation kShuffle{"__shfl_sync", false, shuffle};
const WarpOperation kVote{"a vote", false, count_votes};
const WarpOperation kSyncWarp{"__syncwarp", false, [](void* const*, uint32_t) {}};

}  // namespace tessera::emulator
