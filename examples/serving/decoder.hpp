// One step of the decoder for any number of sequences at once: where Tessera's plans, caches and appends meet a model.
// decoder_cpu.cpp and decoder_cuda.cpp are the two machines that it runs on; what they share is here.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "cache.hpp"
#include "tessera/tessera.hpp"
#include "weights.hpp"

// What a step is to do for one sequence.
struct Slot {
  int64_t sequence;  // its number in the caches
  int32_t token;     // the latest
  int64_t position;  // of that token: how many keys the cache holds before the step
  int64_t frames;    // of the recording that the sequence hears
};

// What ends the program: 3 where the machine has no device that does it, 4 where the device or memory failed.
struct Failure : std::runtime_error {
  Failure(int code, const std::string& message) : std::runtime_error(message), exit_code(code) {}
  int exit_code;
};
void require(const tessera::Status& status);

struct DecoderOptions {
  int64_t sequences;  // at once, at most
  int64_t longest;    // tokens of one
  int32_t page_size;  // 0: dense caches
  int32_t threads;    // of the CPU; 0: all
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  // False where the cache has no room for one more token.
  bool reserve(const Slot& slot);
  void release(int64_t sequence) { self_.release(sequence); }
  // The likeliest next token of each sequence. reserve() was true for each.
  virtual std::vector<int32_t> step(const std::vector<Slot>& batch) = 0;
  // What ran, in words.
  virtual std::string summary() const = 0;

 protected:
  Decoder(const Weights& weights, const DecoderOptions& options, int32_t dtype);
  // A plan for each number of sequences, [n - 1] for n; `prepare` completes each problem.
  template <class Prepare>
  std::vector<tessera::Plan> make_plans(const Cache& cache, int64_t most, Prepare prepare) const;

  const Weights& weights_;
  int64_t audio_owner_;  // the sequence number whose row or pages of audio_ all others share
  Cache self_, audio_;   // grows by a token a step; keys of the recording, written once
};

// A plan depends on sizes alone, so one for each number of sequences serves every step; planning takes microseconds.
template <class Prepare>
std::vector<tessera::Plan> Decoder::make_plans(const Cache& cache, int64_t most, Prepare prepare) const {
  std::vector<tessera::Plan> plans;
  for (int64_t n = 1; n <= most; ++n) {
    tessera::Problem problem;
    cache.describe(problem, n);
    problem.heads_q = Weights::kHeads, problem.seqlen_q = 1;
    prepare(problem);
    auto plan = tessera::plan(problem);
    require(plan.status());
    plans.push_back(*std::move(plan));
  }
  return plans;
}
