// Facts are first turned into the words that the user left out, so one parser owns the language; then what the tensors
// say is compared with what was parsed; last come the numbers that text cannot carry (totals, pages, strides of a
// bias).
#include "cli/bind.hpp"

#include <algorithm>
#include <cctype>

#include "cli/failure.hpp"
#include "problem.hpp"

namespace tessera::cli {
namespace {

using Tensors = std::map<std::string, Tensor>;

// What shapes and types say.
struct Facts {
  bool packed_q = false, packed_k = false, paged = false, bhsd = false;
  int64_t batch = 0, batch_kv = 0, seqlen_q = 0, seqlen_k = 0, total_q = 0, total_k = 0, num_pages = 0, max_pages = 0,
          page_size = 0;
  int64_t heads_q = 0, heads_kv = 0, head_dim_qk = 0, head_dim_v = 0;
  int32_t dtype = 0, dtype_k = 0, dtype_v = 0;
};

const Tensor* find(const Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  return found == tensors.end() ? nullptr : &found->second;
}

void require_shape(const std::string& name, const Tensor& tensor, const std::string& dtype,
                   const std::vector<int64_t>& shape) {
  if (tensor.dtype != dtype) bad_input("{}: dtype {}, expected {}", name, tensor.dtype, dtype);
  if (tensor.shape != shape) bad_input("{}: shape {}, expected {}", name, shape_text(tensor.shape), shape_text(shape));
}

const int32_t* int32_data(const Tensors& tensors, const std::string& name) {
  const Tensor* tensor = find(tensors, name);
  return tensor == nullptr ? nullptr : reinterpret_cast<const int32_t*>(tensor->data.data());
}

// The longest sequence of cumulative lengths; bad ones are left to the library's metadata check.
int64_t longest(const int32_t* cu_seqlens, int64_t batch, int64_t total) {
  int64_t result = 0;
  for (int64_t b = 0; b < batch; ++b) result = std::max(result, int64_t{cu_seqlens[b + 1]} - cu_seqlens[b]);
  return std::min(result, total);
}

int64_t cumulative_batch(const Tensors& tensors, const std::string& name) {
  const Tensor& tensor = tensors.at(name);
  if (tensor.dtype != "I32" || tensor.shape.size() != 1 || tensor.shape[0] < 1)
    bad_input("{}: {} {}, expected I32 [batch + 1]", name, tensor.dtype, shape_text(tensor.shape));
  return tensor.shape[0] - 1;
}

int32_t attention_dtype(const std::string& name, const Tensor& tensor) {
  const int32_t dtype = tessera_dtype(tensor.dtype);
  if (dtype == 0 || dtype == TESSERA_U8)
    bad_input("{}: dtype {}, expected F64, F32, F16, BF16, F8_E4M3 or I8", name, tensor.dtype);
  return dtype;
}

// [batch or page, row, head, dim] of q, k or v, whatever the order in the file; rank 3 is one batch row.
struct Extents {
  int64_t batch, rows, heads, dim;
  bool operator==(const Extents&) const = default;
};
Extents extents(const std::string& name, const Tensor& tensor, bool packed, bool bhsd) {
  std::vector<int64_t> shape = tensor.shape;
  const size_t rank = shape.size();
  if (packed && rank != 3)
    bad_input("{}: shape {}, expected [total, heads, dim] beside cu_seqlens", name, shape_text(shape));
  if (rank != 3 && rank != 4)
    bad_input("{}: shape {}, expected [batch, seqlen, heads, dim] or [seqlen, heads, dim]", name, shape_text(shape));
  if (rank == 3) shape.insert(shape.begin(), 1);
  if (bhsd) std::swap(shape[1], shape[2]);
  for (const int64_t extent : shape)
    if (extent > INT32_MAX) bad_input("{}: shape {}, expected extents below 2^31", name, shape_text(tensor.shape));
  return {shape[0], shape[1], shape[2], shape[3]};
}

void read_keys(const Tensors& tensors, Facts* facts) {
  const Tensor &k = tensors.at("k"), &v = tensors.at("v");
  facts->dtype_k = attention_dtype("k", k);
  facts->dtype_v = attention_dtype("v", v);
  const Extents keys = extents("k", k, facts->packed_k, facts->bhsd),
                values = extents("v", v, facts->packed_k, facts->bhsd);
  if (Extents{keys.batch, keys.rows, keys.heads, values.dim} != values)
    bad_input("v: shape {}, expected that of k, {}, but for head_dim", shape_text(v.shape), shape_text(k.shape));
  facts->heads_kv = keys.heads;
  facts->head_dim_qk = keys.dim;
  facts->head_dim_v = values.dim;
  facts->seqlen_k = keys.rows;
  if (facts->packed_k) {
    if (cumulative_batch(tensors, "cu_seqlens_k") != facts->batch)
      bad_input("cu_seqlens_k: {} sequences, expected {} as q has", cumulative_batch(tensors, "cu_seqlens_k"),
                facts->batch);
    facts->total_k = keys.rows;
    facts->seqlen_k = longest(int32_data(tensors, "cu_seqlens_k"), facts->batch, facts->total_k);
  } else if (facts->paged) {
    if (k.shape.size() != 4)
      bad_input("k: shape {}, expected [page, slot, heads, dim] beside page_table", shape_text(k.shape));
    const Tensor& table = tensors.at("page_table");
    if (table.dtype != "I32" || table.shape.size() != 2 || table.shape[0] != facts->batch)
      bad_input("page_table: {} {}, expected I32 [{}, max_pages]", table.dtype, shape_text(table.shape), facts->batch);
    if (table.shape[1] > INT32_MAX)  // so that max_pages * page_size stays below 2^62
      bad_input("page_table: shape {}, expected extents below 2^31", shape_text(table.shape));
    if (keys.rows < 1) bad_input("k: shape {}, expected pages of 1 slot or more", shape_text(k.shape));
    facts->num_pages = keys.batch;
    facts->page_size = keys.rows;
    facts->max_pages = table.shape[1];
    const Tensor* used = find(tensors, "seqused_k");
    if (used == nullptr) bad_input("seqused_k: absent, expected I32 [{}] beside page_table", facts->batch);
    require_shape("seqused_k", *used, "I32", {facts->batch});
    const int32_t* lengths = int32_data(tensors, "seqused_k");
    facts->seqlen_k = 0;
    for (int64_t b = 0; b < facts->batch; ++b) facts->seqlen_k = std::max<int64_t>(facts->seqlen_k, lengths[b]);
    facts->seqlen_k = std::min(facts->seqlen_k, facts->max_pages * facts->page_size);
  } else {
    facts->batch_kv = keys.batch;
    if (find(tensors, "batch_idx") == nullptr && keys.batch != facts->batch)
      bad_input("k: shape {}, expected batch {} as q has", shape_text(k.shape), facts->batch);
  }
}

Facts read_facts(const Tensors& tensors, bool bhsd) {
  for (const char* name : {"q", "k", "v"})
    if (find(tensors, name) == nullptr) bad_input("{}: tensor absent, expected q, k and v", name);
  Facts facts;
  facts.packed_q = find(tensors, "cu_seqlens_q") != nullptr;
  facts.packed_k = find(tensors, "cu_seqlens_k") != nullptr;
  facts.paged = find(tensors, "page_table") != nullptr;
  facts.bhsd = bhsd;
  if (facts.paged && facts.packed_k) bad_input("cu_seqlens_k: given beside page_table, expected one of the two");
  if (bhsd && (facts.packed_q || facts.packed_k || facts.paged))
    bad_input("layout=bhsd: packed and paged tensors have one layout, [..., heads, dim]");
  const Tensor& q = tensors.at("q");
  facts.dtype = attention_dtype("q", q);
  const Extents queries = extents("q", q, facts.packed_q, bhsd);
  facts.batch = facts.packed_q ? cumulative_batch(tensors, "cu_seqlens_q") : queries.batch;
  facts.seqlen_q = queries.rows;
  facts.heads_q = queries.heads;
  if (facts.packed_q) {
    facts.total_q = queries.rows;
    facts.seqlen_q = longest(int32_data(tensors, "cu_seqlens_q"), facts.batch, facts.total_q);
  }
  read_keys(tensors, &facts);
  if (queries.dim != facts.head_dim_qk)
    bad_input("k: head_dim {}, expected {} as q has", facts.head_dim_qk, queries.dim);
  return facts;
}

bool is_dtype_word(const std::string& word) {
  return word == "f64" || word == "f32" || word == "f16" || word == "bf16" || word == "e4m3";
}

// What a word is about: "sq" for sq128, "scale=" for scale=0.5, else the word itself.
std::string word_key(const std::string& word) {
  if (is_dtype_word(word)) return "dtype";
  const size_t equals = word.find('=');
  if (equals != std::string::npos) return word.substr(0, equals + 1);
  size_t end = word.size();
  while (end > 0 && std::isdigit(static_cast<unsigned char>(word[end - 1]))) --end;
  return end == 0 ? word : word.substr(0, end);
}

// The user's words, then one for each fact that they leave out.
std::string complete_text(const std::vector<std::string>& words, const Facts& facts, const Tensors& tensors) {
  std::string text;
  std::vector<std::string> said;
  for (const std::string& word : words) {
    text += word + ' ';
    said.push_back(word_key(word));
  }
  const auto add = [&](const std::string& key, const std::string& word) {
    if (std::find(said.begin(), said.end(), key) == said.end()) text += word + ' ';
  };
  add("dtype", core::dtype_name(facts.dtype));
  add("b", fmt::format("b{}", facts.batch));
  add("hq", fmt::format("hq{}", facts.heads_q));
  add("hkv", fmt::format("hkv{}", facts.heads_kv));
  add("sq", fmt::format("sq{}", facts.seqlen_q));
  add("sk", fmt::format("sk{}", facts.seqlen_k));
  add("d", fmt::format("d{}", facts.head_dim_qk));
  add("dv", fmt::format("dv{}", facts.head_dim_v));
  if (facts.packed_q) add("packed", "packed");
  if (facts.paged) add("paged=", fmt::format("paged={}", facts.page_size));
  if (facts.dtype_k != facts.dtype && (facts.dtype_k == TESSERA_INT8 || facts.dtype_k == TESSERA_E4M3))
    add("kv=", fmt::format("kv={}", core::dtype_name(facts.dtype_k)));
  if (find(tensors, "alibi_slopes") != nullptr) add("alibi", "alibi");
  if (find(tensors, "sinks") != nullptr) add("sinks", "sinks");
  if (find(tensors, "d_lse") != nullptr) add("dlse", "dlse");
  text.pop_back();
  return text;
}

void refuse_operand_words(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    const std::string key = word_key(word);
    if (key == "lens=" || key == "seed=" || key == "pages=")
      bad_input("{}: makes up operands, but these come from the file", word);
    if (key == "layout=" && word != "layout=bhsd" && word != "layout=bshd")
      bad_input("{}: expected layout=bshd or layout=bhsd", word);
  }
}

// Every word must agree with the tensors.
void compare_facts(const tessera_problem& problem, const Facts& facts, const Tensors& tensors, bool said_dtype) {
  const auto equal = [](const char* word, int64_t said, int64_t have) {
    if (said != have) bad_input("{}{}: the tensors have {}", word, said, have);
  };
  const auto same_dtype = [](const char* name, int32_t said, int32_t have) {
    if (said != have)
      bad_input("{}: the words say {}, the tensor is {}", name, core::dtype_name(said), core::dtype_name(have));
  };
  const auto differ = [](const char* a, int32_t dtype_a, const char* b, int32_t dtype_b) {
    if (dtype_a != dtype_b)
      bad_input("{} is {}, {} is {}, expected one element type", a, core::dtype_name(dtype_a), b,
                core::dtype_name(dtype_b));
  };
  if (!said_dtype) {
    if (problem.k.dtype == facts.dtype) differ("q", facts.dtype, "k", facts.dtype_k);
    differ("k", facts.dtype_k, "v", facts.dtype_v);
  }
  same_dtype("q", problem.q.dtype, facts.dtype);
  same_dtype("k", problem.k.dtype, facts.dtype_k);
  same_dtype("v", problem.v.dtype, facts.dtype_v);
  equal("b", problem.batch, facts.batch);
  equal("hq", problem.heads_q, facts.heads_q);
  equal("hkv", problem.heads_kv, facts.heads_kv);
  equal("sq", problem.seqlen_q, facts.seqlen_q);
  equal("sk", problem.seqlen_k, facts.seqlen_k);
  equal("d", problem.head_dim_qk, facts.head_dim_qk);
  equal("dv", problem.head_dim_v, facts.head_dim_v);
  if (problem.layout_q == TESSERA_PACKED && !facts.packed_q) bad_input("packed: tensor cu_seqlens_q absent");
  if (problem.layout_kv == TESSERA_PAGED) {
    if (!facts.paged) bad_input("paged={}: tensor page_table absent", problem.page_size);
    equal("paged=", problem.page_size, facts.page_size);
  }
  constexpr struct {
    uint64_t flag;
    const char *word, *tensor;
  } kOptional[] = {{TESSERA_FLAG_ALIBI, "alibi", "alibi_slopes"},
                   {TESSERA_FLAG_SINKS, "sinks", "sinks"},
                   {TESSERA_FLAG_BIAS, "bias", "bias"},
                   {TESSERA_FLAG_D_LSE, "dlse", "d_lse"},
                   {TESSERA_FLAG_LEFTPAD, "leftpad", "leftpad"}};
  for (const auto& optional : kOptional)
    if ((problem.flags & optional.flag) != 0 && find(tensors, optional.tensor) == nullptr)
      bad_input("{}: tensor {} absent", optional.word, optional.tensor);
}

void bind_bias(const Tensor& bias, bool said_bias, Job* job) {
  tessera_problem& problem = job->problem;
  const int64_t full[4] = {problem.batch, problem.heads_q, problem.seqlen_q, problem.seqlen_k};
  const int32_t dtype = tessera_dtype(bias.dtype);
  if (dtype != TESSERA_F32 && dtype != TESSERA_U8 && dtype != problem.q.dtype)
    bad_input("bias: dtype {}, expected F32, that of q, or U8 for a mask", bias.dtype);
  if (said_bias && (job->extras.bias_axes == "mask") != (dtype == TESSERA_U8))
    bad_input("{}: tensor bias is {}", job->extras.bias_axes == "mask" ? "mask" : "bias", bias.dtype);
  bool fits = bias.shape.size() == 4;
  for (size_t axis = 0; fits && axis < 4; ++axis) fits = bias.shape[axis] == full[axis] || bias.shape[axis] == 1;
  if (!fits)
    bad_input("bias: shape {}, expected [{}, {}, {}, {}] or 1 where it is shared", shape_text(bias.shape), full[0],
              full[1], full[2], full[3]);
  problem.flags |= TESSERA_FLAG_BIAS;
  problem.bias = {};
  problem.bias.dtype = dtype;
  int64_t stride = 1;
  for (int axis = 3; axis >= 0; --axis) {
    const auto index = static_cast<size_t>(axis);
    problem.bias.stride[axis] = bias.shape[index] == 1 && full[axis] != 1 ? 0 : stride;
    // An empty bias can have any other extents.
    if (__builtin_mul_overflow(stride, bias.shape[index], &stride))
      bad_input("bias: shape {}, expected strides below 2^63", shape_text(bias.shape));
  }
  const bool by_batch = problem.bias.stride[0] != 0, by_head = problem.bias.stride[1] != 0;
  job->extras.bias_axes = dtype == TESSERA_U8   ? "mask"
                          : by_batch && by_head ? "bh"
                          : by_batch            ? "b"
                          : by_head             ? "h"
                                                : "1";
}

// Scales: one block for all rows, one a row, or blocks of 128 or page_size rows, whichever the extent says.
void bind_scale(const std::string& name, const Tensor& scale, int64_t outer, int64_t rows, int64_t heads,
                int64_t page_size, tessera_desc* desc, int32_t* scale_rows) {
  if (scale.dtype != "F32" || scale.shape.size() != 3 || scale.shape[0] != outer || scale.shape[2] != heads)
    bad_input("{}: {} {}, expected F32 [{}, row blocks, {}]", name, scale.dtype, shape_text(scale.shape), outer, heads);
  const int64_t blocks = scale.shape[1];
  int64_t found = -1;
  for (const int64_t candidate : {int64_t{0}, int64_t{1}, int64_t{128}, page_size})
    if (found < 0 && blocks == (candidate == 0 ? 1 : (rows + candidate - 1) / candidate)) found = candidate;
  if (found < 0)
    bad_input("{}: {} row blocks of {} rows, expected blocks of all, 1, 128 or page_size rows", name, blocks, rows);
  *scale_rows = static_cast<int32_t>(found);
  *desc = {};
  desc->dtype = TESSERA_F32;
  desc->stride[0] = blocks * heads;
  desc->stride[1] = heads;
  desc->stride[2] = 1;
}

void bind_scales(const Facts& facts, Job* job) {
  tessera_problem& problem = job->problem;
  const int64_t outer_k = facts.paged ? facts.num_pages : facts.batch,
                rows_k = facts.paged ? facts.page_size : facts.seqlen_k;
  const int64_t page_size = std::max<int64_t>(facts.page_size, 1);
  for (const auto& [name, tensor] : job->inputs) {
    if (name == "q_scale")
      bind_scale(name, tensor, facts.batch, facts.seqlen_q, facts.heads_q, 1, &problem.q_scale, &problem.q_scale_rows);
    if (name == "k_scale")
      bind_scale(name, tensor, outer_k, rows_k, facts.heads_kv, page_size, &problem.k_scale, &problem.k_scale_rows);
    if (name == "v_scale")
      bind_scale(name, tensor, outer_k, rows_k, facts.heads_kv, page_size, &problem.v_scale, &problem.v_scale_rows);
    if (name == "v_mean") {
      require_shape(name, tensor, "F32", {facts.heads_kv, facts.head_dim_v});
      problem.flags |= TESSERA_FLAG_V_MEAN;
    }
  }
}

// Shapes of the optional tensors, and the numbers of the problem that they set.
void bind_optional(const Facts& facts, bool said_bias, Job* job) {
  tessera_problem& problem = job->problem;
  const struct {
    const char* name;
    uint64_t flag;
  } lengths[] = {{"seqused_q", TESSERA_FLAG_SEQUSED_Q},
                 {"seqused_k", TESSERA_FLAG_SEQUSED_K},
                 {"leftpad", TESSERA_FLAG_LEFTPAD},
                 {"batch_idx", TESSERA_FLAG_BATCH_IDX}};
  for (const auto& length : lengths) {
    const Tensor* tensor = find(job->inputs, length.name);
    if (tensor == nullptr) continue;
    require_shape(length.name, *tensor, "I32", {facts.batch});
    problem.flags |= length.flag;
  }
  if (const Tensor* slopes = find(job->inputs, "alibi_slopes")) {
    const bool by_batch = slopes->shape.size() == 2;
    require_shape("alibi_slopes", *slopes, "F32",
                  by_batch ? std::vector<int64_t>{facts.batch, facts.heads_q} : std::vector<int64_t>{facts.heads_q});
    problem.alibi_stride = by_batch ? facts.heads_q : 0;
  }
  if (const Tensor* sinks = find(job->inputs, "sinks")) require_shape("sinks", *sinks, "F32", {facts.heads_q});
  if (const Tensor* bias = find(job->inputs, "bias")) bind_bias(*bias, said_bias, job);
  bind_scales(facts, job);
}

void set_layout(const Facts& facts, tessera_problem* problem) {
  problem->layout_q = facts.packed_q ? TESSERA_PACKED : TESSERA_DENSE;
  problem->layout_kv = facts.paged ? TESSERA_PAGED : facts.packed_k ? TESSERA_PACKED : TESSERA_DENSE;
  problem->total_q = facts.total_q;
  problem->total_k = facts.total_k;
  problem->num_pages = facts.num_pages;
  problem->max_pages = facts.max_pages;
  problem->page_size = static_cast<int32_t>(facts.page_size);
  problem->batch_kv = facts.paged || facts.packed_k ? 0 : facts.batch_kv;
}

void make_output(const std::string& name, int32_t dtype, const std::vector<int64_t>& shape, Job* job) {
  Tensor tensor;
  tensor.dtype = tensor_dtype(dtype);
  tensor.shape = shape;
  size_t bytes = 0;
  if (!checked_bytes(shape, element_bytes(tensor.dtype), &bytes))
    bad_input("{}: shape {} is too large", name, shape_text(shape));
  tensor.data = AlignedBytes(bytes, true);
  job->outputs[name] = std::move(tensor);
}

void make_outputs(const Facts& facts, bool with_lse, Job* job) {
  tessera_problem& problem = job->problem;
  const bool backward = problem.pass == TESSERA_BACKWARD;
  std::vector<int64_t> o_shape = job->inputs.at("q").shape;
  o_shape.back() = facts.head_dim_v;
  const std::vector<int64_t> lse_shape = facts.packed_q
                                             ? std::vector<int64_t>{facts.heads_q, facts.total_q}
                                             : std::vector<int64_t>{facts.batch, facts.heads_q, facts.seqlen_q};
  const int32_t lse_dtype = core::lse_dtype(problem.q.dtype);
  make_output("o", problem.o.dtype, o_shape, job);
  problem.flags &= ~TESSERA_FLAG_LSE;
  if (with_lse || backward) {
    problem.flags |= TESSERA_FLAG_LSE;
    make_output("lse", lse_dtype, lse_shape, job);
  }
  if (!backward) return;
  const Tensor* d_o = find(job->inputs, "d_o");
  if (d_o == nullptr) bad_input("d_o: tensor absent, expected it with bwd");
  require_shape("d_o", *d_o, std::string(tensor_dtype(problem.d_o.dtype)), o_shape);
  if (const Tensor* d_lse = find(job->inputs, "d_lse"))
    require_shape("d_lse", *d_lse, std::string(tensor_dtype(lse_dtype)), lse_shape);
  make_output("dq", problem.dq.dtype, job->inputs.at("q").shape, job);
  make_output("dk", problem.dk.dtype, job->inputs.at("k").shape, job);
  make_output("dv", problem.dv.dtype, job->inputs.at("v").shape, job);
  if (find(job->inputs, "sinks") != nullptr) {
    problem.flags |= TESSERA_FLAG_D_SINKS;
    make_output("d_sinks", TESSERA_F32, {facts.heads_q}, job);
  }
  if (find(job->inputs, "bias") != nullptr && problem.bias.dtype != TESSERA_U8) {
    problem.flags |= TESSERA_FLAG_D_BIAS;
    problem.d_bias = problem.bias;
    make_output("d_bias", problem.bias.dtype, job->inputs.at("bias").shape, job);
  }
}

void set_pointers(Job* job) {
  const auto input = [&](const char* name) -> const void* {
    const Tensor* tensor = find(job->inputs, name);
    return tensor == nullptr ? nullptr : tensor->data.data();
  };
  const auto output = [&](const char* name) -> void* {
    const Tensor* tensor = find(job->outputs, name);
    return tensor == nullptr ? nullptr : tensor->data.data();
  };
  tessera_tensors& t = job->tensors;
  t = {};
  t.size = sizeof t;
  t.q = input("q");
  t.k = input("k");
  t.v = input("v");
  t.o = output("o");
  t.lse = output("lse");
  t.cu_seqlens_q = static_cast<const int32_t*>(input("cu_seqlens_q"));
  t.cu_seqlens_k = static_cast<const int32_t*>(input("cu_seqlens_k"));
  t.seqused_q = static_cast<const int32_t*>(input("seqused_q"));
  t.seqused_k = static_cast<const int32_t*>(input("seqused_k"));
  t.page_table = static_cast<const int32_t*>(input("page_table"));
  t.leftpad = static_cast<const int32_t*>(input("leftpad"));
  t.batch_idx = static_cast<const int32_t*>(input("batch_idx"));
  t.alibi_slopes = static_cast<const float*>(input("alibi_slopes"));
  t.sinks = static_cast<const float*>(input("sinks"));
  t.q_scale = static_cast<const float*>(input("q_scale"));
  t.k_scale = static_cast<const float*>(input("k_scale"));
  t.v_scale = static_cast<const float*>(input("v_scale"));
  t.v_mean = static_cast<const float*>(input("v_mean"));
  t.bias = input("bias");
  t.d_o = input("d_o");
  t.d_lse = input("d_lse");
  t.dq = output("dq");
  t.dk = output("dk");
  t.dv = output("dv");
  t.d_bias = output("d_bias");
  t.d_sinks = static_cast<float*>(output("d_sinks"));
}

}  // namespace

Job bind_tensors(std::map<std::string, Tensor> inputs, const std::vector<std::string>& words, bool with_lse) {
  refuse_operand_words(words);
  const bool bhsd = std::find(words.begin(), words.end(), "layout=bhsd") != words.end();
  const Facts facts = read_facts(inputs, bhsd);
  Job job;
  job.inputs = std::move(inputs);
  tessera_status status;
  require_ok(core::parse_problem(complete_text(words, facts, job.inputs), &job.problem, &job.extras, &status), status);
  const bool said_dtype = std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word_key(word) == "dtype" || word_key(word) == "kv=";
  });
  compare_facts(job.problem, facts, job.inputs, said_dtype);
  const bool said_bias = !job.extras.bias_axes.empty();
  set_layout(facts, &job.problem);
  bind_optional(facts, said_bias, &job);
  for (const char* name : {"d_o", "d_lse"})
    if (job.problem.pass != TESSERA_BACKWARD && find(job.inputs, name) != nullptr)
      bad_input("{}: tensor given, expected only with bwd", name);
  make_outputs(facts, with_lse, &job);
  set_pointers(&job);
  return job;
}

}  // namespace tessera::cli
