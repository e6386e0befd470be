#include "support.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <random>

#include "baselines/kernels.hpp"
#include "baselines/operands.hpp"
#include "baselines/outputs.hpp"
#include "kernel_entry.hpp"

namespace tessera::test {
namespace {

constexpr size_t kPage = 4096;
constexpr std::byte kCanary{0xff};

// Live storages by where their accessible bytes begin.
std::map<std::byte*, std::byte*> storages;
std::mutex storages_mutex;

bool all_canary(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte b) { return b == kCanary; });
}

bool all_zero(const Dims& dims) {
  return std::all_of(dims.begin(), dims.end(), [](int64_t d) { return d == 0; });
}

// Calls visit(b, i, h, c) for every element.
template <class Visit>
void each(const Dims& dims, Visit visit) {
  for (int64_t b = 0; b < dims[0]; ++b)
    for (int64_t i = 0; i < dims[1]; ++i)
      for (int64_t h = 0; h < dims[2]; ++h)
        for (int64_t c = 0; c < dims[3]; ++c) visit(b, i, h, c);
}

int make_and_run(Case& c, const Row& row, const RunOptions& options, tessera_status* status) {
  for (const auto& [name, tensor] : c.outputs()) tensor->poison();
  const tessera_tensors tensors = c.bind();
  std::snprintf(c.problem.kernel, sizeof c.problem.kernel, "%s", row.name.c_str());
  if (row.baseline) {
    core::Plan plan{};
    if (const int code = core::make_plan(c.problem, baselines::kernels(), &plan, status); code != TESSERA_OK)
      return code;
    const Storage workspace(static_cast<size_t>(plan.launch.workspace_bytes));
    c.kernel = row.name;
    return core::run_plan(plan, &tensors, workspace.data(), workspace.bytes(), options.exec, status);
  }
  tessera_plan* plan = nullptr;
  if (const int code = tessera_plan_create(&c.problem, &plan, status); code != TESSERA_OK) return code;
  const std::unique_ptr<tessera_plan, void (*)(tessera_plan*)> owner(plan, tessera_plan_destroy);
  c.kernel = tessera_plan_kernel(plan);
  const Storage workspace(tessera_plan_workspace(plan));
  std::memset(workspace.data(), options.workspace_fill, workspace.bytes());
  const int code = plan_run(plan, tensors, workspace.data(), workspace.bytes(), status, options.exec);
  EXPECT_TRUE(workspace.canaries_intact()) << "workspace overrun by " << c.kernel;
  return code;
}

}  // namespace

Storage::Storage(size_t bytes, bool flush) : bytes_(bytes) {
  const size_t front = kPage + 64, back = flush ? 0 : kPage;
  const size_t inner = (front + bytes + back + kPage - 1) / kPage * kPage;
  map_bytes_ = inner + 2 * kPage;
  void* map = mmap(nullptr, map_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  map_ = static_cast<std::byte*>(map);
  mprotect(map_ + kPage, inner, PROT_READ | PROT_WRITE);
  std::byte* begin = map_ + kPage;
  data_ = flush ? begin + inner - bytes : begin + kPage;  // page-aligned unless flush
  std::memset(begin, 0xff, inner);
  const std::lock_guard<std::mutex> lock(storages_mutex);
  storages.emplace(begin, begin + inner);
}

Storage::~Storage() {
  const std::lock_guard<std::mutex> lock(storages_mutex);
  storages.erase(map_ + kPage);
  munmap(map_, map_bytes_);
}

Storage::Range Storage::range_of(const void* pointer) {
  auto* at = static_cast<std::byte*>(const_cast<void*>(pointer));
  const std::lock_guard<std::mutex> lock(storages_mutex);
  const auto after = storages.upper_bound(at);
  if (after == storages.begin()) return {at, at};
  const auto& [begin, end] = *std::prev(after);
  return at <= end ? Range{begin, end} : Range{at, at};  // an empty tensor may lie at the end
}

bool Storage::canaries_intact() const {
  return all_canary(map_ + kPage, data_) && all_canary(data_ + bytes_, map_ + map_bytes_ - kPage);
}

Placement stored_as(const Dims& dims, int outer, int middle, int inner) {
  Placement placement;
  placement.stride[3] = 1;
  placement.stride[static_cast<size_t>(inner)] = dims[3];
  placement.stride[static_cast<size_t>(middle)] = dims[3] * dims[static_cast<size_t>(inner)];
  placement.stride[static_cast<size_t>(outer)] =
      placement.stride[static_cast<size_t>(middle)] * dims[static_cast<size_t>(middle)];
  return placement;
}

Tensor::Tensor(int32_t dtype, const Dims& dims, const Placement& placement)
    : dtype_(dtype), dims_(dims), placement_(placement) {
  if (all_zero(placement_.stride)) placement_.stride = stored_as(dims, 0, 1, 2).stride;
  int64_t elements = placement_.offset;
  if (std::find(dims.begin(), dims.end(), 0) == dims.end()) {
    elements += 1;
    for (size_t d = 0; d < 4; ++d) elements += (dims[d] - 1) * placement_.stride[d];
  }
  storage_ = std::make_shared<Storage>(static_cast<size_t>(elements * core::dtype_bytes(dtype)), placement.flush);
}

void* Tensor::data() const {
  return storage_ == nullptr ? nullptr : storage_->data() + placement_.offset * core::dtype_bytes(dtype_);
}

int64_t Tensor::index(int64_t b, int64_t i, int64_t h, int64_t c) const {
  const Dims& s = placement_.stride;
  return b * s[0] + i * s[1] + h * s[2] + c * s[3];
}

double Tensor::get(int64_t b, int64_t i, int64_t h, int64_t c) const {
  return baselines::load_element(dtype_, data(), index(b, i, h, c));
}

void Tensor::set(int64_t b, int64_t i, int64_t h, int64_t c, double value) const {
  baselines::store_element(dtype_, data(), index(b, i, h, c), value);
}

void Tensor::fill(double value) const {
  each(dims_, [&](int64_t b, int64_t i, int64_t h, int64_t c) { set(b, i, h, c, value); });
}

void Tensor::fill(const std::function<double(int64_t, int64_t, int64_t, int64_t)>& value) const {
  each(dims_, [&](int64_t b, int64_t i, int64_t h, int64_t c) { set(b, i, h, c, value(b, i, h, c)); });
}

void Tensor::fill_row(int64_t b, int64_t i, int64_t h, double value) const {
  for (int64_t c = 0; c < dims_[3]; ++c) set(b, i, h, c, value);
}

void Tensor::fill_random(uint64_t seed, double sigma) const {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(0, sigma);
  each(dims_, [&](int64_t b, int64_t i, int64_t h, int64_t c) { set(b, i, h, c, normal(generator)); });
}

void Tensor::copy_values(const Tensor& from) const {
  each(dims_, [&](int64_t b, int64_t i, int64_t h, int64_t c) { set(b, i, h, c, from.get(b, i, h, c)); });
}

void Tensor::poison() const { std::memset(storage_->data(), 0xff, storage_->bytes()); }

bool Tensor::untouched(int64_t b, int64_t i, int64_t h, int64_t c) const {
  const int64_t size = core::dtype_bytes(dtype_);
  const std::byte* element = static_cast<const std::byte*>(data()) + index(b, i, h, c) * size;
  return all_canary(element, element + size);
}

bool Tensor::gaps_intact() const {
  if (!storage_->canaries_intact()) return false;
  const size_t size = static_cast<size_t>(core::dtype_bytes(dtype_));
  if (storage_->bytes() == size * static_cast<size_t>(dims_[0] * dims_[1] * dims_[2] * dims_[3])) return true;
  std::vector<bool> covered(storage_->bytes() / size, false);
  each(dims_, [&](int64_t b, int64_t i, int64_t h, int64_t c) {
    covered[static_cast<size_t>(placement_.offset + index(b, i, h, c))] = true;
  });
  for (size_t e = 0; e < covered.size(); ++e)
    if (!covered[e] && !all_canary(storage_->data() + e * size, storage_->data() + (e + 1) * size)) return false;
  return true;
}

bool Tensor::same_bits(const Tensor& other) const { return bytes_of(*this) == bytes_of(other); }

Tensor Tensor::clone() const {
  Tensor copy(dtype_, dims_, placement_);
  std::memcpy(copy.storage_->data(), storage_->data(), storage_->bytes());
  return copy;
}

tessera_desc Tensor::desc(bool packed) const {
  tessera_desc desc{dtype_, 0, {0, 0, 0, 0}};
  const auto address = reinterpret_cast<uintptr_t>(data());
  desc.align = static_cast<int32_t>(std::min<uintptr_t>(address & (~address + 1), 64));
  if (std::find(dims_.begin(), dims_.end(), 0) != dims_.end()) return desc;  // no element, no stride
  for (size_t d = 0; d < 4; ++d)
    desc.stride[d] = packed ? (d < 3 ? placement_.stride[d + 1] : 0) : placement_.stride[d];
  return desc;
}

Case Case::dense(int32_t dtype, const Shape& shape, int32_t o_dtype) {
  Case c;
  tessera_problem& p = c.problem;
  tessera_problem_init(&p, sizeof p);
  p.device = on_gpu() ? 0 : -1;
  p.batch = shape.batch, p.seqlen_q = shape.seqlen_q, p.seqlen_k = shape.seqlen_k;
  p.heads_q = shape.heads_q, p.heads_kv = shape.heads_kv != 0 ? shape.heads_kv : shape.heads_q;
  p.head_dim_qk = shape.head_dim_qk, p.head_dim_v = shape.head_dim_v != 0 ? shape.head_dim_v : shape.head_dim_qk;
  c.q = Tensor(dtype, {p.batch, p.seqlen_q, p.heads_q, p.head_dim_qk});
  c.k = Tensor(dtype, {p.batch, p.seqlen_k, p.heads_kv, p.head_dim_qk});
  c.v = Tensor(dtype, {p.batch, p.seqlen_k, p.heads_kv, p.head_dim_v});
  c.o = Tensor(o_dtype != 0 ? o_dtype : dtype, {p.batch, p.seqlen_q, p.heads_q, p.head_dim_v});
  c.lse = Tensor(core::lse_dtype(dtype), {p.batch, p.heads_q, p.seqlen_q, 1});
  return c;
}

Case Case::packed(int32_t dtype, const std::vector<int32_t>& cu_q, const std::vector<int32_t>& cu_k, Shape shape,
                  int32_t o_dtype) {
  const auto longest = [](const std::vector<int32_t>& cu) {
    int64_t length = 0;
    for (size_t b = 1; b < cu.size(); ++b) length = std::max<int64_t>(length, cu[b] - cu[b - 1]);
    return length;
  };
  const auto batch = static_cast<int64_t>(cu_q.size()) - 1;
  shape.batch = 1, shape.seqlen_q = cu_q.back(), shape.seqlen_k = cu_k.back();
  Case c = dense(dtype, shape, o_dtype);
  c.problem.batch = batch;
  c.problem.layout_q = c.problem.layout_kv = TESSERA_PACKED;
  c.problem.total_q = cu_q.back(), c.problem.total_k = cu_k.back();
  c.problem.seqlen_q = longest(cu_q), c.problem.seqlen_k = longest(cu_k);
  c.cu_seqlens_q = cu_q, c.cu_seqlens_k = cu_k;
  return c;
}

Case Case::paged(int32_t dtype, const Shape& shape, int32_t page_size, int64_t num_pages,
                 const std::vector<int32_t>& page_table) {
  Case c = dense(dtype, shape);
  tessera_problem& p = c.problem;
  p.layout_kv = TESSERA_PAGED;
  p.page_size = page_size, p.num_pages = num_pages;
  p.max_pages = static_cast<int64_t>(page_table.size()) / p.batch;
  c.k = Tensor(dtype, {num_pages, page_size, p.heads_kv, p.head_dim_qk});
  c.v = Tensor(dtype, {num_pages, page_size, p.heads_kv, p.head_dim_v});
  c.page_table = page_table;
  return c;
}

void Case::to_backward(uint64_t seed) {
  problem.pass = TESSERA_BACKWARD;
  d_o = Tensor(o.dtype(), o.dims()), dq = Tensor(q.dtype(), q.dims());
  dk = Tensor(k.dtype(), k.dims()), dv = Tensor(v.dtype(), v.dims());
  d_o.fill_random(seed);
  forward_by_judge();
}

void Case::forward_by_judge() {
  Case forward = *this;
  forward.problem.pass = TESSERA_FORWARD;
  forward.d_lse = {};
  const tessera_tensors tensors = forward.bind();
  core::Problem checked{};
  tessera_status status{};
  ASSERT_EQ(core::validate(forward.problem, &checked, &status), TESSERA_OK) << status.message;
  baselines::store_results(checked, baselines::reference(checked, tensors, baselines::Precision::exact), tensors);
}

Case Case::twin() const {
  Case copy = *this;
  for (Tensor* output : {&copy.o, &copy.lse, &copy.dq, &copy.dk, &copy.dv})
    if (!output->absent()) *output = output->clone();
  return copy;
}

void Case::randomize(uint64_t seed, double sigma) const {
  q.fill_random(seed * 3 + 1, sigma);
  k.fill_random(seed * 3 + 2, sigma);
  v.fill_random(seed * 3 + 3, sigma);
}

void Case::set_flag(uint64_t flag, bool on) { problem.flags = on ? problem.flags | flag : problem.flags & ~flag; }

tessera_tensors Case::bind() {
  const bool packed_q = problem.layout_q == TESSERA_PACKED, packed_kv = problem.layout_kv == TESSERA_PACKED;
  tessera_tensors t{};
  t.size = sizeof t;
  t.q = q.data(), t.k = k.data(), t.v = v.data(), t.o = o.data(), t.lse = lse.data();
  problem.q = q.desc(packed_q), problem.k = k.desc(packed_kv), problem.v = v.desc(packed_kv);
  problem.o = o.desc(packed_q);
  set_flag(TESSERA_FLAG_LSE, !lse.absent());
  set_flag(TESSERA_FLAG_SEQUSED_Q, seqused_q.data() != nullptr);
  set_flag(TESSERA_FLAG_SEQUSED_K, seqused_k.data() != nullptr);
  set_flag(TESSERA_FLAG_LEFTPAD, leftpad.data() != nullptr);
  set_flag(TESSERA_FLAG_BATCH_IDX, batch_idx.data() != nullptr);
  set_flag(TESSERA_FLAG_ALIBI, alibi_slopes.data() != nullptr);
  set_flag(TESSERA_FLAG_SINKS, sinks.data() != nullptr);
  set_flag(TESSERA_FLAG_BIAS, !bias.absent());
  set_flag(TESSERA_FLAG_D_LSE, !d_lse.absent());
  t.cu_seqlens_q = cu_seqlens_q.data(), t.cu_seqlens_k = cu_seqlens_k.data();
  t.seqused_q = seqused_q.data(), t.seqused_k = seqused_k.data();
  t.page_table = page_table.data(), t.leftpad = leftpad.data(), t.batch_idx = batch_idx.data();
  t.alibi_slopes = alibi_slopes.data(), t.sinks = sinks.data();
  if (!bias.absent()) problem.bias = bias.desc(false), t.bias = bias.data();
  if (problem.pass == TESSERA_BACKWARD) {
    problem.d_o = d_o.desc(packed_q), problem.dq = dq.desc(packed_q);
    problem.dk = dk.desc(packed_kv), problem.dv = dv.desc(packed_kv);
    t.d_o = d_o.data(), t.d_lse = d_lse.data(), t.dq = dq.data(), t.dk = dk.data(), t.dv = dv.data();
  }
  return t;
}

std::vector<std::pair<const char*, const Tensor*>> Case::outputs() const {
  if (problem.pass == TESSERA_BACKWARD) return {{"dq", &dq}, {"dk", &dk}, {"dv", &dv}};
  if (lse.absent()) return {{"o", &o}};
  return {{"o", &o}, {"lse", &lse}};
}

std::vector<Row> kernel_rows(Rows which) {
  std::vector<Row> rows;
  if (on_gpu()) {
    // Ablations take little and have tests of their own (gpu_ablations_test.cpp).
    for (const core::KernelEntry& entry : core::cuda_kernels())
      if (!entry.pinned_only) rows.push_back({entry.name, false});
    return rows;
  }
  for (const core::KernelEntry& entry : core::cpu_kernels()) {
    const bool emulated = std::string_view(entry.name).find("emulated") != std::string_view::npos;
    if (which != Rows::native || !emulated) rows.push_back({entry.name, false});
  }
  if (which == Rows::all)
    for (const core::KernelEntry& entry : baselines::kernels())
      if (std::string_view(entry.name).starts_with("cpu.")) rows.push_back({entry.name, true});
  return rows;
}

int run(Case& c, const Row& row, tessera_status* status, const RunOptions& options) {
  return make_and_run(c, row, options, status);
}

int run_raw(const tessera_problem& problem, const tessera_tensors& tensors, tessera_status* status,
            const tessera_exec* exec) {
  tessera_plan* plan = nullptr;
  if (const int code = tessera_plan_create(&problem, &plan, status); code != TESSERA_OK) return code;
  const Storage workspace(tessera_plan_workspace(plan));
  const int code = plan_run(plan, tensors, workspace.data(), workspace.bytes(), status, exec);
  tessera_plan_destroy(plan);
  return code;
}

void run_on(Case& c, const std::string& library_row, const RunOptions& options) {
  tessera_status status{};
  ASSERT_EQ(run(c, {library_row, false}, &status, options), TESSERA_OK) << status.message;
  expect_written(c);
}

bool Case::in_call(const Tensor& output, int64_t, int64_t i, int64_t h) const {
  const bool is_lse = &output == &lse;
  const bool by_query = is_lse || &output == &o || &output == &dq;
  const Array<int32_t>& cu = by_query ? cu_seqlens_q : cu_seqlens_k;
  if (cu.size() == 0) return true;
  return (is_lse ? h : i) < cu[cu.size() - 1];
}

void expect_written(const Case& c) {
  for (const auto& [name, tensor] : c.outputs()) {
    EXPECT_TRUE(tensor->gaps_intact()) << c.kernel << " wrote beside " << name;
    int64_t missed = 0, strayed = 0;
    each(tensor->dims(), [&, t = tensor](int64_t b, int64_t i, int64_t h, int64_t x) {
      const bool untouched = t->untouched(b, i, h, x);
      if (c.in_call(*t, b, i, h)) {
        missed += untouched;
      } else {
        strayed += !untouched;
      }
    });
    EXPECT_EQ(missed, 0) << c.kernel << " left elements of " << name << " unwritten";
    EXPECT_EQ(strayed, 0) << c.kernel << " wrote elements of " << name << " past the last sequence";
  }
  for (const Tensor* input : {&c.q, &c.k, &c.v}) EXPECT_TRUE(input->gaps_intact()) << c.kernel << " wrote to an input";
}

int on_every_accepting_row(Case& c, const std::function<void()>& check, Rows which) {
  int library_rows = 0;
  for (const Row& row : kernel_rows(which)) {
    SCOPED_TRACE(row.name);
    tessera_status status{};
    const int code = run(c, row, &status);
    if (code == TESSERA_UNSUPPORTED) {
      EXPECT_STRNE(status.message, "") << "refused without a reason";
      continue;
    }
    EXPECT_EQ(code, TESSERA_OK) << status.message;
    if (code != TESSERA_OK) continue;
    library_rows += !row.baseline;
    expect_written(c);
    check();
  }
  c.problem.kernel[0] = '\0';
  return library_rows;
}

void on_every_row(Case& c, const std::function<void()>& check, Rows which) {
  EXPECT_GT(on_every_accepting_row(c, check, which), 0) << "no row of the library takes this call";
}

Judge judge(Case& c) {
  const tessera_tensors tensors = c.bind();
  core::Problem problem{};
  tessera_status status{};
  EXPECT_EQ(core::validate(c.problem, &problem, &status), TESSERA_OK) << status.message;
  if (status.code != TESSERA_OK) return {};
  return {baselines::reference(problem, tensors, baselines::Precision::exact),
          baselines::reference(problem, tensors, baselines::Precision::naive)};
}

void expect_close(Case& c, const Judge& judged) {
  const tessera_tensors tensors = c.bind();
  core::Problem problem{};
  tessera_status status{};
  ASSERT_EQ(core::validate(c.problem, &problem, &status), TESSERA_OK) << status.message;
  for (const baselines::Comparison& result : baselines::compare(problem, tensors, &judged.exact, &judged.naive))
    EXPECT_TRUE(result.passed) << result.tensor << ": max error " << result.max_abs_error << ", tolerance "
                               << result.tolerance;
}

void check_against_judge(Case& c, Rows which) {
  const Judge judged = judge(c);
  on_every_row(
      c, [&] { expect_close(c, judged); }, which);
}

double roundoff(int32_t dtype) {
  switch (dtype) {
    case TESSERA_F64:
      return 0x1p-53;
    case TESSERA_F32:
      return 0x1p-24;
    case TESSERA_F16:
      return 0x1p-11;
    default:
      return 0x1p-8;
  }
}

void expect_row(const Tensor& t, int64_t b, int64_t i, int64_t h, double value, double ulps) {
  const double bound = ulps * roundoff(t.dtype()) * std::abs(value);
  for (int64_t c = 0; c < t.dims()[3]; ++c) {
    const double got = t.get(b, i, h, c);
    const bool good =
        ulps == 0 ? got == value && std::signbit(got) == std::signbit(value) : std::abs(got - value) <= bound;
    EXPECT_TRUE(good) << "(" << b << ", " << i << ", " << h << ", " << c << ") is " << got << ", expected " << value;
    if (!good) return;
  }
}

void expect_empty_row(const Case& c, int64_t b, int64_t i, int64_t h) {
  expect_row(c.o, b, i, h, 0.0);
  if (!c.lse.absent()) {
    EXPECT_EQ(lse_at(c, b, i, h), -kInfinity);
  }
}

double lse_at(const Case& c, int64_t b, int64_t i, int64_t h) { return c.lse.get(b, h, i, 0); }

std::vector<std::byte> bytes_of(const Tensor& t) {
  const int64_t size = core::dtype_bytes(t.dtype());
  std::vector<std::byte> bytes;
  each(t.dims(), [&](int64_t b, int64_t i, int64_t h, int64_t c) {
    const std::byte* element = static_cast<const std::byte*>(t.data()) + t.index(b, i, h, c) * size;
    bytes.insert(bytes.end(), element, element + size);
  });
  return bytes;
}

const char* name_of(int32_t dtype) { return core::dtype_name(dtype); }

}  // namespace tessera::test
