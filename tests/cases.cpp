#include "cases.hpp"

#include <iterator>
#include <stdexcept>

namespace tessera::tests {
namespace {

constexpr const char* kDtypes[] = {"f32", "f16", "bf16", "f64"};

// Around tiles of 16, 64 and 128, head dims that are no multiple of a vector, more queries than keys, one key, one
// query.
constexpr const char* kShapes[] = {
    "b3 hq4 hkv2 sq65 sk70 d40 dv24", "b1 hq3 hkv1 sq1 sk130 d64",        "b2 hq2 sq33 sk257 d72",
    "b3 hq6 hkv2 sq17 sk17 d8 dv16",  "b1 hq2 hkv1 sq5 sk2 d64",          "b2 hq4 sq64 sk64 d128",
    "b1 hq1 sq129 sk191 d96 dv33",    "b1 hq4 hkv1 sq3 sk100 d576 dv512", "b2 hq2 hkv1 sq7 sk9 d1",
    "b1 hq2 sq80 sk81 d192 dv128",    "b2 hq8 hkv1 sq2 sk65 d80",         "b1 hq2 sq20 sk1 d5 dv3"};

constexpr const char* kScores[] = {"",
                                   "causal",
                                   "causal topleft",
                                   "window=7,3",
                                   "window=16,0",
                                   "window=-1,5",
                                   "window=0,0",
                                   "window=4,-1 topleft",
                                   "window=4096,4096 causal",
                                   "softcap=15",
                                   "alibi",
                                   "sinks",
                                   "causal sinks alibi softcap=30",
                                   "scale=0",
                                   "scale=-0.7 causal",
                                   "splits=3",
                                   "splits=7 causal sinks",
                                   "splits=2 window=20,4 alibi"};

constexpr const char* kBiases[] = {"bias=bh", "bias=b causal",     "bias=h softcap=9", "bias=1 alibi sinks",
                                   "mask",    "mask causal sinks", "bias=bh splits=2"};

// Layout words for three sequences; lengths beyond a shape's maxima are cut to them.
constexpr const char* kLayouts[] = {"layout=bhsd",
                                    "lens=longtail",
                                    "packed lens=longtail",
                                    "packed lens=longtail layout=bhsd",
                                    "paged=16 pages=shuffled",
                                    "paged=1 lens=longtail",
                                    "paged=64 lens=longtail pages=shuffled layout=bhsd",
                                    "paged=5 leftpad lens=longtail",
                                    "leftpad lens=equal"};

std::string join(std::initializer_list<std::string> words) {
  std::string line;
  for (const std::string& word : words) {
    if (word.empty()) continue;
    if (!line.empty()) line += ' ';
    line += word;
  }
  return line;
}

// Gaps between rows, heads and batches of every operand, and no more alignment than an element.
void stretch(tessera_desc* desc, int64_t rows, int64_t heads, int64_t dim, int32_t element_bytes) {
  desc->align = element_bytes;
  desc->stride[3] = 1;
  desc->stride[2] = dim + 3;
  desc->stride[1] = heads * desc->stride[2] + 5;
  desc->stride[0] = rows * desc->stride[1] + 7;
}

void strided(tessera_problem* p) {
  const auto bytes = [](const tessera_desc& desc) { return core::dtype_bytes(desc.dtype); };
  stretch(&p->q, p->seqlen_q, p->heads_q, p->head_dim_qk, bytes(p->q));
  stretch(&p->k, p->seqlen_k, p->heads_kv, p->head_dim_qk, bytes(p->k));
  stretch(&p->v, p->seqlen_k, p->heads_kv, p->head_dim_v, bytes(p->v));
  stretch(&p->o, p->seqlen_q, p->heads_q, p->head_dim_v, bytes(p->o));
  if (p->pass == TESSERA_FORWARD) return;
  stretch(&p->d_o, p->seqlen_q, p->heads_q, p->head_dim_v, bytes(p->d_o));
  stretch(&p->dq, p->seqlen_q, p->heads_q, p->head_dim_qk, bytes(p->dq));
  stretch(&p->dk, p->seqlen_k, p->heads_kv, p->head_dim_qk, bytes(p->dk));
  stretch(&p->dv, p->seqlen_k, p->heads_kv, p->head_dim_v, bytes(p->dv));
}

// A cache with more rows than sequences, used out of order.
void cache_rows(tessera_problem* p) {
  p->flags |= TESSERA_FLAG_BATCH_IDX;
  p->batch_kv = p->batch + 2;
}

void slopes_by_batch(tessera_problem* p) { p->alibi_stride = p->heads_q + 1; }

// A bias column for all rows, one number for all keys of a row.
void bias_column(tessera_problem* p) {
  const int64_t strides[4] = {0, 0, 0, 1};
  for (int d = 0; d < 4; ++d) p->bias.stride[d] = strides[d];
}
void bias_row(tessera_problem* p) {
  const int64_t strides[4] = {0, p->seqlen_q, 1, 0};
  for (int d = 0; d < 4; ++d) p->bias.stride[d] = strides[d];
}

// The same of its gradient, with one number for all sequences and heads.
void bias_column_gradient(tessera_problem* p) {
  bias_column(p);
  p->d_bias.stride[3] = 1;
}
void bias_row_gradient(tessera_problem* p) {
  bias_row(p);
  for (int d = 0; d < 4; ++d) p->d_bias.stride[d] = p->bias.stride[d];
}

// Packed arrays with rows behind the last sequence, which no call may touch.
void spare_rows(tessera_problem* p) {
  p->total_q += 9;
  p->total_k += 4;
}

// A factor for each (batch or page, block of rows, key head).
void scale_blocks(tessera_problem* p) {
  for (tessera_desc* scale : {&p->k_scale, &p->v_scale}) {
    scale->stride[2] = 1;
    scale->stride[1] = p->heads_kv;
    scale->stride[0] = p->heads_kv * (p->layout_kv == TESSERA_PAGED ? p->page_size : p->seqlen_k);
  }
  p->k_scale_rows = p->v_scale_rows = 1;
}
void scale_heads(tessera_problem* p) {
  for (tessera_desc* scale : {&p->k_scale, &p->v_scale}) {
    scale->stride[2] = 1;
    scale->stride[0] = p->heads_kv;
  }
}

// e4m3 or int8: a factor for each (batch or page, 128 rows, head), of q, k and v.
void scale_tiles(tessera_problem* p) {
  const bool paged = p->layout_kv == TESSERA_PAGED;
  for (tessera_desc* scale : {&p->q_scale, &p->k_scale, &p->v_scale}) {
    const bool query = scale == &p->q_scale;
    const int64_t heads = query ? p->heads_q : p->heads_kv;
    const int64_t rows = query ? p->seqlen_q : paged ? p->page_size : p->seqlen_k;
    scale->stride[2] = 1;
    scale->stride[1] = heads;
    scale->stride[0] = heads * ((rows + 127) / 128);
  }
  p->q_scale_rows = p->k_scale_rows = p->v_scale_rows = 128;
}
void scale_query_heads(tessera_problem* p) {
  scale_heads(p);
  p->q_scale.stride[2] = 1;
  p->q_scale.stride[0] = p->heads_q;
}
void order_values(tessera_problem* p) { p->v_order = 1; }
void order_scaled_values(tessera_problem* p) {
  scale_tiles(p);
  p->v_order = 1;
}
void share_value_means(tessera_problem* p) { p->flags |= TESSERA_FLAG_V_MEAN; }
void add_value_means(tessera_problem* p) {
  p->flags |= TESSERA_FLAG_V_MEAN;
  p->v_mean_stride = p->heads_kv * p->head_dim_v + 3;
}
void order_values_with_means(tessera_problem* p) {
  order_scaled_values(p);
  add_value_means(p);
}

// e4m3: what quantised operands alone have.
void add_quantized(std::vector<Case>* cases) {
  for (const char* score : {"", "causal", "window=16,0", "softcap=15", "causal sinks alibi softcap=30", "scale=0",
                            "splits=3", "mask causal sinks", "bias=h"}) {
    cases->push_back({join({"fwd e4m3 b2 hq4 hkv2 sq65 sk170 d40 dv24", score}), scale_query_heads, "scales by head"});
  }
  const struct {
    void (*adjust)(tessera_problem*);
    const char* name;
  } forms[] = {{nullptr, ""},
               {scale_tiles, "scales by 128 rows"},
               {order_values, "v_order 1"},
               {order_scaled_values, "v_order 1, scales by 128 rows"},
               {share_value_means, "one mean of v"}};
  for (const auto& form : forms) {
    for (const char* layout : {"", "lens=longtail causal", "packed lens=longtail causal", "paged=16 pages=shuffled",
                               "paged=64 lens=longtail sinks leftpad", "leftpad lens=equal layout=bhsd"}) {
      cases->push_back({join({"fwd e4m3 b3 hq4 hkv2 sq33 sk150 d64", layout}), form.adjust, form.name});
    }
  }
  for (const char* layout : {"sinks", "causal sinks sk9", "packed lens=longtail sinks", "splits=3 causal"}) {
    cases->push_back({join({"fwd e4m3 b3 hq4 hkv2 sq33 d48", layout}), add_value_means, "means of v by sequence"});
    cases->push_back({join({"fwd e4m3 b3 hq4 hkv2 sq33 d48", layout}), order_values_with_means, "v_order 1, means"});
  }
  for (const char* output : {"o=f16", "o=f32", "o=bf16"})
    cases->push_back({join({"fwd e4m3 b1 hq2 sq40 sk300 d128", output})});
  for (const char* cache : {"kv=e4m3", "kv=int8"}) {
    cases->push_back({join({"fwd bf16 b2 hq4 hkv2 sq70 sk130 d64 causal", cache}), scale_heads, "scales by head"});
    cases->push_back({join({"fwd f16 b2 hq4 hkv2 sq70 sk130 d64 causal", cache}), order_values, "v_order 1"});
    cases->push_back({join({"fwd f32 b2 hq4 hkv2 sq3 sk130 d64 sinks", cache}), add_value_means, "means of v"});
  }
}

void add_grid(const char* pass, std::vector<Case>* cases) {
  // Every score with every dtype, shapes in turn; then every layout with every score, dtypes and shapes in turn.
  size_t turn = 0;
  for (const char* dtype : kDtypes) {
    for (const char* score : kScores) {
      const bool splits = std::string(score).find("splits") != std::string::npos;
      if (splits && pass == std::string("bwd")) continue;
      cases->push_back({join({pass, dtype, kShapes[turn++ % std::size(kShapes)], score})});
    }
    for (const char* bias : kBiases) {
      const std::string lens = turn % 2 == 0 ? "" : "lens=longtail";
      cases->push_back({join({pass, dtype, kShapes[turn++ % std::size(kShapes)], bias, lens})});
    }
  }
}

}  // namespace

std::vector<Case> forward_cases() {
  std::vector<Case> cases;
  add_grid("fwd", &cases);
  size_t turn = 0;
  for (const char* layout : kLayouts) {
    for (const char* score : kScores) {
      ++turn;
      cases.push_back({join({"fwd", kDtypes[turn % 4], kShapes[(turn * 5) % std::size(kShapes)], score, layout,
                             "seed=" + std::to_string(turn)})});
    }
  }
  for (const char* dtype : {"f32", "bf16"}) {
    const std::string small = join({"fwd", dtype, "b3 hq4 hkv2 sq19 sk75 d48 causal"});
    cases.push_back({small, strided, "gaps in every operand, element alignment"});
    cases.push_back({small + " lens=longtail", cache_rows, "batch_idx"});
    cases.push_back({small + " lens=longtail leftpad splits=2", cache_rows, "batch_idx"});
    cases.push_back({small + " alibi", slopes_by_batch, "slopes by batch"});
    cases.push_back({small + " bias", bias_column, "bias by key"});
    cases.push_back({small + " bias", bias_row, "bias by row"});
    cases.push_back({small + " paged=16 mask lens=longtail"});
    cases.push_back({small + " packed lens=longtail", spare_rows, "rows behind the last sequence"});
  }
  for (const char* dtype : {"f16", "bf16"}) {
    cases.push_back({join({"fwd", dtype, "b2 hq4 hkv2 sq70 sk130 d64 o=f32 causal"})});
    for (const char* cache : {"kv=int8", "kv=e4m3"}) {
      const std::string decode = join({"fwd", dtype, "b3 hq8 hkv2 sq1 sk150 d64 lens=longtail", cache});
      cases.push_back({decode, scale_heads, "scales by head"});
      cases.push_back({decode + " paged=16", scale_blocks, "scales by row"});
    }
  }
  add_quantized(&cases);
  for (const char* empty :
       {"b0 hq2 sq8 sk8 d16", "b2 hq2 sq0 sk7 d16", "b2 hq2 sq3 sk0 d16", "b2 hq2 sq3 sk0 d16 sinks",
        "b3 hq2 sq9 sk9 d16 packed lens=0:0:0", "b3 hq2 sq9 sk9 d16 lens=0:9:0 causal sinks",
        "b3 hq2 sq9 sk90 d16 lens=0:9:0 paged=16 splits=4"}) {
    for (const char* dtype : kDtypes) cases.push_back({join({"fwd", dtype, empty})});
  }
  return cases;
}

std::vector<Case> backward_cases() {
  std::vector<Case> cases;
  add_grid("bwd", &cases);
  for (const char* dtype : kDtypes) {
    const std::string small = join({"bwd", dtype, "b3 hq4 hkv2 sq21 sk37 d24 dv40"});
    cases.push_back({small + " dlse causal sinks"});
    cases.push_back({small + " dlse bias=h dbias softcap=7 lens=longtail"});
    cases.push_back({small + " bias=1 dbias alibi"});
    cases.push_back({small + " bias=bh dbias sinks dlse lens=21:0:37"});
    cases.push_back({small + " packed lens=longtail causal dlse"});
    cases.push_back({small + " packed lens=21:0:5 window=6,2 layout=bhsd"});
    cases.push_back({small + " causal", strided, "gaps in every operand, element alignment"});
    cases.push_back({small + " packed lens=longtail", spare_rows, "rows behind the last sequence"});
    cases.push_back({small + " alibi causal", slopes_by_batch, "slopes by batch"});
    cases.push_back({small + " bias dbias", bias_column_gradient, "bias by key"});
    cases.push_back({small + " bias dbias", bias_row_gradient, "bias by row"});
  }
  return cases;
}

baselines::OperandSet operands_of(const Case& one) {
  tessera_problem problem;
  core::TextExtras extras;
  tessera_status status{};
  if (core::parse_problem(one.text, &problem, &extras, &status) != TESSERA_OK) {
    throw std::runtime_error(one.name() + ": " + status.message);
  }
  if (one.adjust != nullptr) one.adjust(&problem);
  return baselines::make_operands(problem, extras);
}

}  // namespace tessera::tests
