#include "decoder.hpp"

void require(const tessera::Status& status) {
  if (status.ok()) return;
  const bool refused = status.code() == TESSERA_UNSUPPORTED || status.code() == TESSERA_NO_DEVICE;
  throw Failure(refused ? 3 : 4, status.message());
}

Decoder::Decoder(const Weights& weights, const DecoderOptions& options, int32_t dtype)
    : weights_(weights),
      audio_owner_(options.sequences),
      self_({static_cast<int64_t>(weights.layers.size()), options.sequences, options.sequences, options.longest,
             Weights::kHeads, Weights::kHeadDim, options.page_size, dtype}),
      audio_({static_cast<int64_t>(weights.layers.size()), options.sequences + 1, 1, weights.frames, Weights::kHeads,
              Weights::kHeadDim, options.page_size, dtype}) {
  audio_.reserve(audio_owner_, weights.frames);
}

bool Decoder::reserve(const Slot& slot) {
  audio_.share(slot.sequence, audio_owner_);
  return self_.reserve(slot.sequence, slot.position + 1);
}
