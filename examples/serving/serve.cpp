// A serving loop on real weights: Whisper tiny.en's decoder writes down the beginnings of one recording, many sequences
// at once. A sequence that ends gives its place and its memory to the next request in the middle of the others; caches
// are dense or in pages; new keys are appended in the call that attends. On the CPU, or with --device cuda on a GPU,
// where a step is a CUDA graph. With --check the tokens must be those of reference.json, which reference.py made with
// plain NumPy.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "decoder_cpu.hpp"
#if SERVING_HAS_CUDA
#include "decoder_cuda.hpp"
#endif

namespace {

constexpr const char* kUsage =
    "serve [--device cpu | cuda] [--dense | --paged] [--page-size N] [--batch N] [--requests N] [--tokens N] "
    "[--threads N] [--check] [--quiet] [--data DIR]";
constexpr int64_t kLongest = 101;  // tokens of a sequence, the prompt's with them

struct Options {
  bool cuda = false, dense = true, paged = true, check = false, quiet = false, help = false;
  int32_t page_size = 16, threads = 0;
  int64_t batch = 4, requests = 8, tokens = kLongest;
  std::string data = SERVING_DATA;
};

struct Request {
  int64_t frames;
  std::vector<int32_t> expected, tokens;
};

// A sequence that is being decoded.
struct Active {
  size_t request;
  int64_t sequence;  // of the caches
  std::vector<int32_t> tokens;
};

int64_t number(const std::string& name, const char* text) {
  char* end = nullptr;
  const long value = text != nullptr ? std::strtol(text, &end, 10) : 0, least = name == "--threads" ? 0 : 1;
  if (text == nullptr || *text == '\0' || *end != '\0' || value < least || value > 4096)
    throw std::runtime_error(name + ": " + (text != nullptr ? text : "nothing") + "; expected a number of " +
                             std::to_string(least) + " to 4096");
  return value;
}

Options parse(int count, char** words) {
  Options options;
  bool only_dense = false, only_paged = false;  // both: both, as without a word
  for (int n = 1; n < count; ++n) {
    const std::string word = words[n];
    const char* next = n + 1 < count ? words[n + 1] : nullptr;
    if (word == "--help" || word == "-h") {
      options.help = true;
    } else if (word == "--dense") {
      only_dense = true;
    } else if (word == "--paged") {
      only_paged = true;
    } else if (word == "--check") {
      options.check = true;
    } else if (word == "--quiet") {
      options.quiet = true;
    } else if (word == "--device") {
      if (next == nullptr || (std::strcmp(next, "cpu") != 0 && std::strcmp(next, "cuda") != 0))
        throw std::runtime_error(word + ": " + (next != nullptr ? next : "nothing") + "; expected cpu or cuda");
      options.cuda = std::strcmp(next, "cuda") == 0, ++n;
    } else if (word == "--data") {
      if (next == nullptr) throw std::runtime_error(word + ": nothing; expected a folder");
      options.data = next, ++n;
    } else if (word == "--batch") {
      options.batch = number(word, next), ++n;
    } else if (word == "--requests") {
      options.requests = number(word, next), ++n;
    } else if (word == "--tokens") {
      options.tokens = number(word, next), ++n;
    } else if (word == "--page-size") {
      options.page_size = static_cast<int32_t>(number(word, next)), ++n;
    } else if (word == "--threads") {
      options.threads = static_cast<int32_t>(number(word, next)), ++n;
    } else {
      throw std::runtime_error(word + ": not an option; expected " + kUsage);
    }
  }
  if (options.cuda && options.threads != 0)
    throw std::runtime_error("--threads: " + std::to_string(options.threads) + "; expected 0 with --device cuda");
  if (only_dense != only_paged) options.dense = only_dense, options.paged = only_paged;
  return options;
}

std::unique_ptr<Decoder> make_decoder(const Weights& weights, const Options& options, int32_t page_size) {
  const DecoderOptions shape{options.batch, kLongest, page_size, options.threads};
  if (!options.cuda) return std::make_unique<CpuDecoder>(weights, shape);
#if SERVING_HAS_CUDA
  return std::make_unique<CudaDecoder>(weights, shape);
#else
  throw Failure(3, "--device: cuda; this program was built without CUDA");
#endif
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream in(path);
  nlohmann::json value = nlohmann::json::parse(in, nullptr, false);
  if (value.is_discarded()) throw std::runtime_error(path + ": missing or not JSON");
  return value;
}

// Request n asks for the beginning that the reference's entry n, counted around, is about.
std::vector<Request> make_requests(const Options& options, int64_t most_frames) {
  const std::string path = options.data + "/reference.json";
  const nlohmann::json reference = read_json(path);
  if (!reference.is_array() || reference.empty()) throw std::runtime_error(path + ": expected a list of requests");
  std::vector<Request> requests;
  for (int64_t n = 0; n < options.requests; ++n) {
    const size_t at = static_cast<size_t>(n) % reference.size();
    try {
      requests.push_back({reference[at].at("frames"), reference[at].at("tokens"), {}});
    } catch (const nlohmann::json::exception&) {
      throw std::runtime_error(path + ": entry " + std::to_string(at) +
                               R"(; expected {"frames": n, "tokens": [n, ...]})");
    }
    if (requests.back().frames < 1 || requests.back().frames > most_frames)
      throw std::runtime_error(path + ": entry " + std::to_string(at) + " has " +
                               std::to_string(requests.back().frames) + " frames; expected 1 to " +
                               std::to_string(most_frames));
    std::vector<int32_t>& expected = requests.back().expected;
    if (expected.size() > static_cast<size_t>(options.tokens)) expected.resize(static_cast<size_t>(options.tokens));
  }
  return requests;
}

// The text of each token.
std::vector<std::string> read_vocabulary(const std::string& path, int64_t tokens) {
  const nlohmann::json list = read_json(path);
  try {
    std::vector<std::string> texts = list;
    if (texts.size() >= static_cast<size_t>(tokens)) return texts;
  } catch (const nlohmann::json::exception&) {
  }
  throw std::runtime_error(path + ": expected a list of " + std::to_string(tokens) + " or more texts");
}

void print_text(const std::vector<std::string>& vocabulary, size_t number, const Request& request, int32_t end) {
  std::string text;
  for (const int32_t token : request.tokens) text += token == end ? "" : vocabulary.at(static_cast<size_t>(token));
  std::printf("  request %zu, %5.1f s of sound, %3zu tokens:%s\n", number, static_cast<double>(request.frames) / 50,
              request.tokens.size(), text.c_str());
}

// Decodes every request, at most `options.batch` at a time; returns how many tokens were made.
int64_t serve(const Weights& weights, const Options& options, Decoder& decoder, std::vector<Request>& requests,
              const std::vector<std::string>& vocabulary) {
  std::deque<size_t> waiting;
  for (size_t n = 0; n < requests.size(); ++n) waiting.push_back(n);
  std::vector<int64_t> places;  // sequences of the caches that no request has
  for (int64_t n = options.batch; n-- > 0;) places.push_back(n);
  const size_t longest = std::min<size_t>(kLongest, weights.prompt.size() + static_cast<size_t>(options.tokens));
  std::vector<Active> active;
  std::vector<Slot> batch;
  int64_t made = 0;
  while (!waiting.empty() || !active.empty()) {
    for (; !waiting.empty() && !places.empty(); waiting.pop_front(), places.pop_back())
      active.push_back({waiting.front(), places.back(), {weights.prompt.front()}});
    batch.clear();
    for (const Active& one : active) {
      const auto position = static_cast<int64_t>(one.tokens.size()) - 1;
      batch.push_back({one.sequence, one.tokens.back(), position, requests[one.request].frames});
      if (!decoder.reserve(batch.back())) throw std::runtime_error("the cache is full");
    }
    const std::vector<int32_t> next = decoder.step(batch);
    for (size_t n = active.size(); n-- > 0;) {
      Active& one = active[n];
      // Tokens of the prompt are given, whatever the model would have said.
      const size_t length = one.tokens.size();
      const bool given = length < weights.prompt.size();
      one.tokens.push_back(given ? weights.prompt[length] : next[n]);
      made += given ? 0 : 1;
      if (one.tokens.back() != weights.end && one.tokens.size() < longest) continue;
      Request& request = requests[one.request];
      request.tokens.assign(one.tokens.begin() + static_cast<int64_t>(weights.prompt.size()), one.tokens.end());
      if (!options.quiet) print_text(vocabulary, one.request, request, weights.end);
      decoder.release(one.sequence);
      places.push_back(one.sequence);
      active.erase(active.begin() + static_cast<int64_t>(n));
    }
  }
  return made;
}

int run(const Options& options) {
  const Weights weights = load_weights(options.data + "/decoder_int8.safetensors");
  const std::vector<std::string> vocabulary = read_vocabulary(options.data + "/vocab.json", weights.to_logits.outputs);
  bool right = true;
  for (const bool paged : {false, true}) {
    if (!(paged ? options.paged : options.dense)) continue;
    const int32_t page_size = paged ? options.page_size : 0;
    const std::unique_ptr<Decoder> decoder = make_decoder(weights, options, page_size);
    std::vector<Request> requests = make_requests(options, weights.frames);
    const auto begin = std::chrono::steady_clock::now();
    const int64_t made = serve(weights, options, *decoder, requests, vocabulary);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const std::string layout = paged ? "pages of " + std::to_string(page_size) : "dense cache";
    std::printf("%s, %zu requests, %d at a time: %d tokens in %.2f s, %.0f a second; %s\n", layout.c_str(),
                requests.size(), static_cast<int>(options.batch), static_cast<int>(made), seconds,
                static_cast<double>(made) / seconds, decoder->summary().c_str());
    for (size_t n = 0; options.check && n < requests.size(); ++n) {
      if (requests[n].tokens == requests[n].expected) continue;
      std::printf("request %zu: the tokens differ from the reference\n", n);
      right = false;
    }
  }
  if (options.check && right) std::printf("the tokens of every request are those of the reference\n");
  return right ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  try {
    const Options options = parse(count, words);
    return options.help ? std::puts(kUsage), 0 : run(options);
  } catch (const Failure& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return failure.exit_code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
