// What the tests of public bug situations share: operands between canaries and inaccessible pages, a case that owns a
// whole call, and loops over every kernel row. Invariant: after each run of a case every output element that belongs to
// the call was written, and no byte beside them changed.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "baselines/reference.hpp"
#include "tessera/tessera.h"

namespace tessera::test {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline const std::vector<int32_t> kHalfTypes = {TESSERA_F16, TESSERA_BF16};
inline const std::vector<int32_t> kAllTypes = {TESSERA_F64, TESSERA_F32, TESSERA_F16, TESSERA_BF16};

// Where situations run: on the CPU's rows or, while an OnGpu lives, on the rows of CUDA device 0, with every operand
// mirrored there and back. A test body is written once and serves both, see TESSERA_SITUATION.
struct Target {
  int (*run)(const tessera_plan*, const tessera_tensors&, void* workspace, size_t bytes, tessera_status*);
  int (*check_metadata)(const tessera_plan*, const tessera_tensors&, tessera_status*);
  int (*merge)(const tessera_merge_args&, bool backward, tessera_status*);
  int (*append)(const tessera_problem&, const tessera_tensors&, const tessera_append_args&, tessera_status*);
  int (*quantize)(const tessera_quantize_args&, tessera_status*);
};
extern const Target* gpu_target;  // null: the CPU
inline bool on_gpu() { return gpu_target != nullptr; }
class OnGpu {
 public:
  OnGpu();
  ~OnGpu();
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
};
// Null, or why GPU tests cannot run here.
const char* no_gpu();

// Defines TEST(suite, name) and, where CUDA is built, TEST(Gpu<suite>, name) with one body.
#if TESSERA_HAS_CUDA
#define TESSERA_SITUATION(suite, name)                                                                  \
  static void suite##_##name();                                                                         \
  TEST(suite, name) { suite##_##name(); }                                                               \
  TEST(Gpu##suite, name) {                                                                              \
    if (const char* reason = ::tessera::test::no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason; \
    const ::tessera::test::OnGpu target;                                                                \
    suite##_##name();                                                                                   \
  }                                                                                                     \
  static void suite##_##name()
#else
#define TESSERA_SITUATION(suite, name) TEST(suite, name)
#endif

// A file of the build or the source tree: where it was when this binary was built, else under the binary's own folder
// (`name`), so that a copied binary finds what was copied with it. TESSERA_TEST_DATA, where set, is the folder of data.
std::string file_of_build(const std::string& built, const std::string& name);
std::string data_file(const std::string& name);

// What the target's rows take of element types (a GPU: f16 and bf16) and head dims (a GPU: multiples of 8 up to 256).
std::vector<int32_t> offered(const std::vector<int32_t>& dtypes);
int32_t offered(int32_t dtype);  // the dtype itself, or bf16
bool offered_dim(int32_t head_dim);
// `cpu`, or what an lse of a GPU is held to: its exponentials err by 2^-22, and its maximum comes from base 2.
double lse_slack(double cpu);

// Bytes between two inaccessible pages: at least 4 KiB of 0xff (NaN in every float type) lie before and after the data,
// or, with `flush`, nothing after it: reading one byte past the end faults.
class Storage {
 public:
  explicit Storage(size_t bytes, bool flush = false);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  bool canaries_intact() const;
  // Data and canaries of the storage that holds a pointer; an empty range for a pointer into none.
  struct Range {
    std::byte *begin, *end;
  };
  static Range range_of(const void* pointer);

 private:
  std::byte* map_ = nullptr;
  size_t map_bytes_ = 0;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

using Dims = std::array<int64_t, 4>;

// Where a tensor lies in its storage; strides in elements.
struct Placement {
  Dims stride = {0, 0, 0, 0};  // all zero: contiguous
  int64_t offset = 0;          // elements before element (0, 0, 0, 0)
  bool flush = false;
};
// Strides of dims [batch, seqlen, heads, dim] stored with `outer`, `middle` and `inner` (each 0, 1 or 2: batch, seqlen,
// heads) as their order in memory, dim innermost.
Placement stored_as(const Dims& dims, int outer, int middle, int inner);

// A tensor [batch, seqlen, heads, dim]; packed ones have batch 1, paged ones are [page, slot, heads, dim]. Copies share
// the storage. Bytes that no element covers hold 0xff.
class Tensor {
 public:
  Tensor() = default;
  Tensor(int32_t dtype, const Dims& dims, const Placement& placement = {});

  int32_t dtype() const { return dtype_; }
  const Dims& dims() const { return dims_; }
  bool absent() const { return storage_ == nullptr; }
  void* data() const;
  int64_t index(int64_t b, int64_t i, int64_t h, int64_t c) const;
  double get(int64_t b, int64_t i, int64_t h, int64_t c) const;
  void set(int64_t b, int64_t i, int64_t h, int64_t c, double value) const;  // rounds to nearest even
  void fill(double value) const;
  void fill(const std::function<double(int64_t, int64_t, int64_t, int64_t)>& value) const;
  void fill_row(int64_t b, int64_t i, int64_t h, double value) const;
  void fill_random(uint64_t seed, double sigma = 1) const;  // normal(0, sigma)
  void copy_values(const Tensor& from) const;               // element by element, rounding to this dtype
  void poison() const;                                      // every byte of the storage to 0xff
  bool untouched(int64_t b, int64_t i, int64_t h, int64_t c) const;
  bool gaps_intact() const;  // canaries, and every byte that no element covers
  bool same_bits(const Tensor& other) const;
  Tensor clone() const;  // own storage, same placement and bytes
  tessera_desc desc(bool packed) const;

 private:
  int32_t dtype_ = 0;
  Dims dims_{};
  Placement placement_;
  std::shared_ptr<Storage> storage_;
};

// An int32 or float array that ends at an inaccessible page.
template <class T>
class Array {
 public:
  Array() = default;
  Array(const std::vector<T>& values) : storage_(std::make_shared<Storage>(values.size() * sizeof(T), true)) {
    for (size_t i = 0; i < values.size(); ++i) data()[i] = values[i];
  }
  Array(std::initializer_list<T> values) : Array(std::vector<T>(values)) {}
  T* data() const { return storage_ == nullptr ? nullptr : reinterpret_cast<T*>(storage_->data()); }
  size_t size() const { return storage_ == nullptr ? 0 : storage_->bytes() / sizeof(T); }
  T& operator[](size_t i) const { return data()[i]; }

 private:
  std::shared_ptr<Storage> storage_;
};

struct Shape {
  int64_t batch = 1, seqlen_q = 1, seqlen_k = 1;
  int32_t heads_q = 1, heads_kv = 0;         // 0: heads_q
  int32_t head_dim_qk = 64, head_dim_v = 0;  // 0: head_dim_qk
};

// One call: the problem and everything it points at. Members may be replaced before a run; bind() takes descriptors and
// pointers from them.
struct Case {
  tessera_problem problem;
  Tensor q, k, v, o, lse, bias, d_o, d_lse, dq, dk, dv;
  Array<int32_t> cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, page_table, leftpad, batch_idx;
  Array<float> alibi_slopes, sinks;
  std::string kernel;  // of the latest run

  // Contiguous operands of one dtype, q k v uninitialised (NaN), lse written.
  static Case dense(int32_t dtype, const Shape& shape, int32_t o_dtype = 0);
  static Case packed(int32_t dtype, const std::vector<int32_t>& cu_q, const std::vector<int32_t>& cu_k, Shape shape,
                     int32_t o_dtype = 0);
  // Dense q; k and v in `num_pages` pages; sequence b has seqlen_k keys unless seqused_k is set. The table has
  // `max_pages` entries a sequence.
  static Case paged(int32_t dtype, const Shape& shape, int32_t page_size, int64_t num_pages,
                    const std::vector<int32_t>& page_table);
  void to_backward(uint64_t seed);  // adds d_o (random), dq, dk, dv; o and lse from the judge
  void forward_by_judge();          // o and lse for the present inputs
  Case twin() const;                // the same inputs, outputs of its own
  void randomize(uint64_t seed, double sigma = 1) const;
  void set_flag(uint64_t flag, bool on = true);
  void set_causal() { problem.right = 0; }
  tessera_tensors bind();  // writes descriptors and flags to `problem`, returns the pointers
  std::vector<std::pair<const char*, const Tensor*>> outputs() const;
  bool in_call(const Tensor& output, int64_t b, int64_t i, int64_t h) const;  // an element the call must write
};

struct Row {
  std::string name;
  bool baseline;  // runs through the internal list instead of the C interface
};
// native: the library's rows but the emulated ones, which are 20 times slower and only worth it on small operands.
enum class Rows { native, library, all };
std::vector<Row> kernel_rows(Rows which);

// What a run was given besides its operands.
struct RunOptions {
  const tessera_exec* exec = nullptr;
  int workspace_fill = 0xff;
};
// Poisons the outputs and runs on `row` (an empty name: the library's choice). Returns the status code; *status is
// filled.
int run(Case& c, const Row& row, tessera_status* status, const RunOptions& options = {});
// Runs on a row of the library (empty: its own choice), which must succeed and write what it should.
void run_on(Case& c, const std::string& library_row = "", const RunOptions& options = {});

// tessera_plan_run, tessera_merge, tessera_merge_backward and tessera_append on the target.
int plan_run(const tessera_plan* plan, const tessera_tensors& tensors, void* workspace, size_t bytes,
             tessera_status* status, const tessera_exec* exec = nullptr);
int merge(const tessera_merge_args& args, tessera_status* status, const tessera_exec* exec = nullptr);
int merge_backward(const tessera_merge_args& args, tessera_status* status);
int append(const tessera_problem& problem, const tessera_tensors& tensors, const tessera_append_args& args,
           tessera_status* status, const tessera_exec* exec = nullptr);
int quantize(const tessera_quantize_args& args, tessera_status* status, const tessera_exec* exec = nullptr);

// Plans and runs through the C interface exactly what is given.
int run_raw(const tessera_problem& problem, const tessera_tensors& tensors, tessera_status* status,
            const tessera_exec* exec = nullptr);

// Every element that the call owns was written, nothing beside them.
void expect_written(const Case& c);

// Runs the case on every row that takes it, then expect_written and `check`. At least one library row must take it.
// Forward passes only; backward ones may be refused by all, see on_every_accepting_row.
void on_every_row(Case& c, const std::function<void()>& check, Rows which = Rows::all);
// The same without the demand that a library row takes it. Returns how many library rows ran.
int on_every_accepting_row(Case& c, const std::function<void()>& check, Rows which = Rows::all);

// float64 results and the yardstick for a case's present inputs; expect_close compares the outputs under the tolerance
// rule.
struct Judge {
  baselines::Results exact, naive;
};
Judge judge(Case& c);
void expect_close(Case& c, const Judge& judged);
void check_against_judge(Case& c, Rows which = Rows::library);  // judge once, run and compare on every row

// Unit roundoff of a type: half the distance from 1 to the next number.
double roundoff(int32_t dtype);
// All columns of one row of a tensor against a value; `ulps` in units of the dtype's roundoff, 0: exactly, sign of zero
// too.
void expect_row(const Tensor& t, int64_t b, int64_t i, int64_t h, double value, double ulps = 0);
void expect_empty_row(const Case& c, int64_t b, int64_t i, int64_t h);  // o = +0, lse = -inf; dense
double lse_at(const Case& c, int64_t b, int64_t i, int64_t h);
std::vector<std::byte> bytes_of(const Tensor& t);  // logical elements in order

// A call that must fail with `code`, write nothing, and have `word` in its message.
void expect_refused(Case& c, int code, const std::string& word);

// The same for lengths and page tables. A run on a GPU does not look at them: there tessera_check_metadata refuses, and
// the run itself stays inside the operands.
void expect_metadata_refused(Case& c, const std::string& word);

const char* name_of(int32_t dtype);

}  // namespace tessera::test
