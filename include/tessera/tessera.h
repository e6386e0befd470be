/* Tessera: exact attention in tiles. This header is the ABI: C11, the only exported symbols.
 *
 * Semantics (docs/semantics.md), one definition for every kernel. For query row i of a sequence with
 * seqlen_q queries and seqlen_k keys, and key column j:
 *
 *     offset = seqlen_k - seqlen_q (TESSERA_BOTTOM_RIGHT, the default) or 0 (TESSERA_TOP_LEFT)
 *     keep   = i + offset - left <= j <= i + offset + right              -1: that side is unbounded
 *     c      = scale * dot(q_i, k_j);  c = softcap * tanh(c / softcap)   if softcap > 0
 *     x      = c + bias(i, j) - slope[h] * |i + offset - j|
 *     lse(i) = ln([exp(sink[h])] + sum over kept j of exp(x))            natural logarithm
 *     o_i    = sum over kept j of exp(x - lse(i)) v_j
 *
 * A row that keeps no key: o = +0, lse = -inf (or the sink). Causal is right = 0.
 * Every struct begins with its own size and is only ever appended to; the library refuses a size that it does
 * not know. Functions that return int return a status code; `status` may be NULL. Nothing here throws, aborts
 * or prints (but for TESSERA_LOG=plan on stderr). All functions are safe to call from any number of threads. */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define TESSERA_API
#elif defined(TESSERA_BUILD)
#define TESSERA_API __attribute__((visibility("default")))
#else
#define TESSERA_API
#endif

#define TESSERA_VERSION_MAJOR 0
#define TESSERA_VERSION_MINOR 1
#define TESSERA_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* Status codes. */
enum {
  TESSERA_OK,
  TESSERA_INVALID_ARGUMENT,    /* the call itself is wrong: argument, value and expectation in the message */
  TESSERA_UNSUPPORTED,         /* a correct request that no kernel of this build takes; reasons in the message */
  TESSERA_WORKSPACE_TOO_SMALL, /* message gives bytes needed and given */
  TESSERA_NO_DEVICE,
  TESSERA_DEVICE_ERROR,
  TESSERA_OUT_OF_MEMORY,
  TESSERA_INTERNAL
};
enum { TESSERA_FORWARD, TESSERA_BACKWARD };
enum { TESSERA_F64 = 1, TESSERA_F32, TESSERA_F16, TESSERA_BF16, TESSERA_E4M3, TESSERA_INT8, TESSERA_U8 };
enum { TESSERA_DENSE, TESSERA_PACKED, TESSERA_PAGED };
enum { TESSERA_BOTTOM_RIGHT, TESSERA_TOP_LEFT };
/* Values of tessera_problem.isa: a cap on the CPU instruction set; 0 leaves the choice to the library. */
enum {
  TESSERA_ISA_AUTO,
  TESSERA_ISA_PORTABLE,
  TESSERA_ISA_AVX2,
  TESSERA_ISA_AVX512,
  TESSERA_ISA_AMX,
  TESSERA_ISA_NEON
};

/* tessera_problem.flags: which optional operands take part. */
#define TESSERA_FLAG_LSE UINT64_C(0x1)      /* write lse */
#define TESSERA_FLAG_D_LSE UINT64_C(0x2)    /* backward: d_lse is given */
#define TESSERA_FLAG_ALIBI UINT64_C(0x4)    /* alibi_slopes is given */
#define TESSERA_FLAG_SINKS UINT64_C(0x8)    /* sinks is given */
#define TESSERA_FLAG_D_SINKS UINT64_C(0x10) /* backward: write d_sinks */
#define TESSERA_FLAG_BIAS UINT64_C(0x20)    /* bias (or a u8 mask) is given */
#define TESSERA_FLAG_D_BIAS UINT64_C(0x40)  /* backward: write d_bias */
#define TESSERA_FLAG_SEQUSED_Q UINT64_C(0x80)
#define TESSERA_FLAG_SEQUSED_K UINT64_C(0x100)
#define TESSERA_FLAG_LEFTPAD UINT64_C(0x200)
#define TESSERA_FLAG_BATCH_IDX UINT64_C(0x400)
#define TESSERA_FLAG_DETERMINISTIC UINT64_C(0x800)
#define TESSERA_FLAG_BATCH_INVARIANT UINT64_C(0x1000)
#define TESSERA_FLAG_V_MEAN UINT64_C(0x2000)

typedef struct tessera_status {
  int32_t code;
  char message[252]; /* one line, zero-terminated; empty when code is TESSERA_OK */
} tessera_status;

/* How one operand lies in memory.
 * dtype   element type, TESSERA_F64 ... TESSERA_U8; 0: as q (o and gradients of e4m3 q: bf16; v: as k; d_bias: as bias)
 * align   bytes, a power of two, that the operand's address is a multiple of; 0: 16
 * stride  elements. dense [batch, seqlen, heads, dim], packed [total, heads, dim] (stride[3] unused, 0),
 *         paged [page, slot, heads_kv, dim], bias [batch, heads_q, seqlen_q, seqlen_k],
 *         scales [batch or page, row block, head]. dim has stride 1. The stride of a size-1 dim is never used.
 *         v under v_order 1: [batch or page, heads_kv, dim, slot], packed [heads_kv, dim, slot]; slot has stride 1
 *         All zero: contiguous for q k v o d_o dq dk dv; literal zeros (broadcast) for bias, d_bias and scales.
 *         bias and d_bias: dim 3 has stride 1 or 0. */
typedef struct tessera_desc {
  int32_t dtype, align;
  int64_t stride[4];
} tessera_desc;

/* Everything about a call but its pointers. tessera_problem_init gives every field its default. */
typedef struct tessera_problem {
  size_t size;
  int32_t pass;   /* TESSERA_FORWARD or TESSERA_BACKWARD */
  int32_t device; /* -1: the CPU; else a CUDA device number */
  int64_t batch;
  int64_t batch_kv;           /* rows of a dense K/V cache; 0: batch */
  int64_t seqlen_q, seqlen_k; /* maxima where lengths vary */
  int64_t total_q, total_k;   /* packed: rows of q and of k, v */
  int64_t num_pages, max_pages;
  int64_t page_table_stride; /* elements between rows of page_table; 0: max_pages */
  int64_t alibi_stride;      /* elements between batches of alibi_slopes; 0: shared */
  int64_t v_mean_stride;     /* elements between batches of v_mean; 0: shared */
  int64_t left, right;       /* band, in keys; -1: unbounded */
  int32_t heads_q, heads_kv; /* heads_q is a multiple of heads_kv */
  int32_t head_dim_qk, head_dim_v;
  int32_t layout_q, layout_kv; /* TESSERA_DENSE, TESSERA_PACKED; layout_kv also TESSERA_PAGED */
  int32_t page_size, mask_alignment;
  double scale;   /* NaN: 1 / sqrt(head_dim_qk); 0 and negatives are values */
  double softcap; /* 0: off */
  uint64_t flags; /* TESSERA_FLAG_* */
  tessera_desc q, k, v, o, bias, d_o, dq, dk, dv, d_bias, q_scale, k_scale, v_scale;
  int32_t q_scale_rows, k_scale_rows, v_scale_rows; /* rows a scale block covers: 0 (all), 1, 128, page_size */
  int32_t v_order;      /* 1: e4m3 or int8 v lies as tessera_quantize_args.order 1 says; page_size a multiple of 16 */
  int32_t num_splits;   /* 0: the library chooses; n: split size 64 * ceil(ceil(own length / 64) / n) */
  int32_t sm_margin;    /* multiprocessors left to others */
  int32_t threads;      /* CPU tasks at most; 0: the CPUs of the affinity mask */
  int32_t isa;          /* TESSERA_ISA_* cap */
  char kernel[64];      /* pin: name or glob ("cpu.avx2.*"); empty: choose */
  char device_name[32]; /* plan for a named GPU ("h200"); such a plan explains but does not run */
} tessera_problem;

struct tessera_append_args;

/* The pointers of one run. Unused ones are NULL. Device pointers for a CUDA plan, host pointers for a CPU plan.
 * lse, d_lse   float32 (float64 for f64 inputs), natural log, contiguous [batch, heads_q, seqlen_q], packed
 *              [heads_q, total_q]
 * cu_seqlens   int32 [batch + 1], first 0, not falling, last at most total
 * seqused      int32 [batch], used length of each sequence; leftpad int32 [batch]; batch_idx int32 [batch]
 * page_table   int32 [batch, max_pages] with row stride page_table_stride
 * alibi_slopes float32 [heads_q] or [batch, heads_q]; sinks float32 [heads_q], natural-log logits, -inf: none
 * d_sinks      float32 [heads_q]
 * append       first does what tessera_append does, with k_cache = k and v_cache = v, then attends to the keys before
 *              and the new ones, under rotary embedding with q_rotated for q */
typedef struct tessera_tensors {
  size_t size;
  const void *q, *k, *v;
  void *o, *lse;
  const int32_t *cu_seqlens_q, *cu_seqlens_k, *seqused_q, *seqused_k, *page_table, *leftpad, *batch_idx;
  const float *alibi_slopes, *sinks, *q_scale, *k_scale, *v_scale, *v_mean;
  const void* bias;
  const void *d_o, *d_lse;
  void *dq, *dk, *dv, *d_bias;
  float* d_sinks;
  const struct tessera_append_args* append;
} tessera_tensors;

/* The caller's threads. parallel must call task(arg, i) once for every i in [0, count), in any order, on any
 * threads, and return when all are done. `threads` is how many it can run at once. A run asks for at most the plan's
 * threads (tessera_problem.threads) tasks, which never wait for one another. */
typedef struct tessera_executor {
  size_t size;
  int32_t threads, reserved;
  void* context;
  void (*parallel)(void* context, int64_t count, void (*task)(void*, int64_t), void* arg);
} tessera_executor;

/* How to run: NULL means the default stream and the library's own thread pool. */
typedef struct tessera_exec {
  size_t size;
  void* cuda_stream;
  const tessera_executor* executor;
} tessera_exec;

/* Merge of `states` partial results of the same queries over disjoint keys, in the order given.
 * o [states, batch, seqlen_q, heads, head_dim_v] dtype, lse [states, batch, heads, seqlen_q] float32 (float64 for f64);
 * o_out [batch, seqlen_q, heads, head_dim_v] out_dtype, lse_out [batch, heads, seqlen_q]; packed: batch 1,
 * seqlen_q = total_q. All contiguous. An empty state is (anything finite, -inf). Backward: d_o, d_lse of every state
 * from d_o_out, d_lse_out (NULL: zero), with o, lse, o_out and lse_out as the forward left them; d_o has dtype,
 * d_o_out out_dtype. `device` is where everything lies: -1 the CPU, else a CUDA device, where exec's stream takes one
 * launch. The first launch of a process loads the kernel, so make one before a graph is captured. */
typedef struct tessera_merge_args {
  size_t size;
  int64_t states, batch, seqlen_q;
  int32_t heads, head_dim_v, dtype, out_dtype, device, reserved;
  const void *o, *lse;
  void *o_out, *lse_out;
  const void *d_o_out, *d_lse_out;
  void *d_o, *d_lse;
} tessera_merge_args;

/* New K and V rows written into a cache behind what it holds, with rotary embedding, conversion and quantisation. The
 * problem describes the cache as attention over it does: layout_kv dense (with or without batch_idx) or paged, seqlen_k
 * the rows that a sequence may have, TESSERA_FLAG_SEQUSED_K. tensors.seqused_k holds the lengths before; new row t of
 * sequence b goes to slot seqused_k[b] + t of its cache row or page list, leftpad slots counted.
 *
 * k_new, v_new   new rows [batch, seqlen_new, heads_kv, dim], with cu_seqlens_new [total_new, heads_kv, dim]; f32, f16
 *                or bf16 (f64 for an f64 cache); dtype 0: as q. Rounded once, to nearest even, to the cache's type.
 *                int8: x / k_scale (v_scale) rounded and kept within -127 to 127; e4m3: the same within -448 to 448,
 *                and NaN stays. x under a scale of 0, and in int8 NaN, becomes 0. The scales are inputs, laid out as
 *                for attention; NULL is 1
 * cu_seqlens_new int32 [batch + 1], first 0, not falling, last at most total_new; at most seqlen_new rows a sequence.
 *                NULL: every sequence gets seqlen_new rows
 * rotary_cos, rotary_sin [rotary_seqlen, rotary_dim / 2] q's dtype, contiguous. The pairs (x, y) of the first
 *                rotary_dim elements, which is even, become (x cos - y sin, x sin + y cos): elements 2 i and 2 i + 1
 *                where rotary_interleaved is 1, i and i + rotary_dim / 2 where it is 0. rotary_dim 0: none. New row t
 *                turns by table row seqused_k[b] + t; query i by the same with t = i where the problem has a band (left
 *                or right is not -1), else by row seqused_k[b]
 * q_rotated      tensors.q turned, by desc q_out of dtype 0 or q's; may be q itself under equal strides. NULL: q is not
 *                read
 * k_cache, v_cache  the cache, by the problem's descs k and v
 *
 * On the CPU: where two sequences of a call share a slot, the later one's row stays. A cache without room, a page id
 * or a position out of range is INVALID_ARGUMENT, and nothing is written. Results do not depend on the thread count.
 * On a CUDA device (caches of all types but f64): one launch, which may be captured; lengths, tables and cu_seqlens are
 * read there. Numbers have the bits of the CPU's, but for a NaN's. A row without room, or whose page or cache row does
 * not exist, is left out; a position past the tables turns by their last row; lengths below 0 count as 0; of sequences
 * that share a slot, any element may stay. tessera_check_metadata finds what is out of range. */
typedef struct tessera_append_args {
  size_t size;
  int64_t seqlen_new, total_new, rotary_seqlen;
  int32_t rotary_dim, rotary_interleaved;
  tessera_desc k_new, v_new, q_out;
  const void *k_new_data, *v_new_data, *rotary_cos, *rotary_sin;
  const int32_t* cu_seqlens_new;
  void *k_cache, *v_cache, *q_rotated;
} tessera_append_args;

/* Quantisation of q, k or v before attention: y and scales with value = y * scale, as attention takes them. In order:
 *
 *     x -= mean[batch, head, channel]   subtract_mean; the means over the rows of a sequence are found here and written
 *     x  = R x                          hadamard; R is orthonormal, so R q . R k = q . k where both have one seed
 *     scale = largest |x| of the scale's cell / 448 (int8: / 127); 1 where that is 0
 *     y  = x * (1 / scale), rounded once to nearest even, at most 448 (127) in magnitude
 *
 * R: signs by seed and channel, then a Hadamard matrix over blocks of channels, the largest power of two that divides
 * head_dim and is at most 256, over the root of the block; head_dim is even. NaN becomes NaN in e4m3 and 0 in int8.
 * Non-finite numbers count neither in a scale nor in a mean; a rotation spreads them over the block of their row.
 *
 * x           [batch, seqlen, heads, head_dim] or packed [total, heads, head_dim]; f32, f16 or bf16 (x.dtype is needed)
 * cu_seqlens  packed: int32 [batch + 1], first 0, not falling, last at most total, at most seqlen rows a sequence
 * y           e4m3 or int8 (0: e4m3), by desc y. order 0: the dims of x. order 1, for v under v_order 1: dense [batch,
 *             heads, head_dim, slots], slots = seqlen rounded up to 16; packed [heads, head_dim, slots], slots =
 *             (total + 15 * batch) / 16 * 16 with sequence b from slot (cu_seqlens[b] + 15 * b) / 16 * 16 on (both
 *             divisions round down, so sequences never meet in a group of 16). Row r of a sequence is slot
 *             r - r % 16 + P[r % 16] from there, P = 0 1 4 5 8 9 12 13 2 3 6 7 10 11 14 15: slots 0 to 15 hold rows
 *             0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15. Slots of a sequence's last 16 that no row has are written 0. A
 *             paged v is pages of batch [page, heads, head_dim, page_size]
 * scale       float32 by desc scale, indexed [batch, row block, head] with literal strides: 0 shares a scale, so all
 *             zero is one for the tensor. scale_rows rows a block: 0 (all), 1 or 128. All described scales are
 *             written. scale_data NULL: no scales, 1
 * mean        float32 [batch, heads, head_dim], contiguous; NULL unless subtract_mean is 1. Of v: v_mean of attention
 *             with v_mean_stride = heads * head_dim
 *
 * Rows behind the last sequence and slots of none are not touched; x and y do not overlap. `device`: -1 the CPU, where
 * results are bitwise the same for any number of threads; else a CUDA device, one to five launches, where y and scales
 * have the CPU's bits if the means have, which are summed in float64 in another order. A process's first call loads the
 * kernels: make it before a graph is captured. There a sequence whose cu_seqlens are out of range is left out. */
typedef struct tessera_quantize_args {
  size_t size;
  int64_t batch, seqlen, total;
  uint64_t seed;
  int32_t heads, head_dim, device, layout, scale_rows, order, hadamard, subtract_mean;
  tessera_desc x, y, scale;
  const void* x_data;
  const int32_t* cu_seqlens;
  void* y_data;
  float *scale_data, *mean;
} tessera_quantize_args;

typedef struct tessera_plan tessera_plan; /* immutable; any number of threads may run it, each with its own workspace */

/* Defaults: forward, CPU, f32, unbounded band, bottom-right, scale NaN, every count 0.
 * `size` is sizeof(tessera_problem). */
TESSERA_API void tessera_problem_init(tessera_problem* problem, size_t size);
/* Reads a problem line ("fwd bf16 b4 hq32 hkv8 sq4096 d128 causal cpu"). INVALID_ARGUMENT names the word.
 * Words say nothing of lse: set TESSERA_FLAG_LSE to have it written. */
TESSERA_API int tessera_problem_parse(const char* text, tessera_problem* problem, tessera_status* status);
/* Writes the canonical line, zero-terminated within `capacity`; returns its length as snprintf does. */
TESSERA_API size_t tessera_problem_format(const tessera_problem* problem, char* text, size_t capacity);
/* OK, or the code that tessera_plan_create would return; `reasons` (may be NULL) says why, one line a kernel. */
TESSERA_API int tessera_supports(const tessera_problem* problem, char* reasons, size_t capacity);
/* Validates and chooses a kernel. On failure *plan is NULL. */
TESSERA_API int tessera_plan_create(const tessera_problem* problem, tessera_plan** plan, tessera_status* status);
TESSERA_API void tessera_plan_destroy(tessera_plan* plan); /* NULL is fine */
/* Bytes of workspace a run needs, 256-byte aligned; 0: none. Contents arbitrary before and undefined after. */
TESSERA_API size_t tessera_plan_workspace(const tessera_plan* plan);
TESSERA_API const char* tessera_plan_kernel(const tessera_plan* plan); /* "cpu.avx2.forward" */
/* How many rows that stand before the chosen one refused; *first_reason (may be NULL) is the first one's reason. */
TESSERA_API int tessera_plan_passed_over(const tessera_plan* plan, const char** first_reason);
/* The plan in words (json = 0) or as one JSON object; returns its length as snprintf does. */
TESSERA_API size_t tessera_plan_explain(const tessera_plan* plan, int json, char* text, size_t capacity);
/* Checks pointers, alignment, workspace and (CPU) lengths and page tables, then runs. Nothing is written on failure. */
TESSERA_API int tessera_plan_run(const tessera_plan* plan, const tessera_tensors* tensors, void* workspace,
                                 size_t bytes, const tessera_exec* exec, tessera_status* status);
/* Checks cu_seqlens, used lengths, page tables, leftpad and batch_idx; blocking on CUDA. */
TESSERA_API int tessera_check_metadata(const tessera_plan* plan, const tessera_tensors* tensors,
                                       const tessera_exec* exec, tessera_status* status);
TESSERA_API int tessera_merge(const tessera_merge_args* args, const tessera_exec* exec, tessera_status* status);
TESSERA_API int tessera_merge_backward(const tessera_merge_args* args, const tessera_exec* exec,
                                       tessera_status* status);
/* Writes new rows into a cache as tessera_append_args says; of tensors it reads seqused_k, page_table, leftpad,
 * batch_idx, k_scale, v_scale and, for q_rotated, q, cu_seqlens_q and seqused_q. problem.device says where everything
 * lies. On CUDA the first launch of a process, or a plan with TESSERA_FLAG_SEQUSED_K, loads the kernel: do either
 * before a graph is captured. */
TESSERA_API int tessera_append(const tessera_problem* problem, const tessera_tensors* tensors,
                               const tessera_append_args* args, const tessera_exec* exec, tessera_status* status);
TESSERA_API int tessera_quantize(const tessera_quantize_args* args, const tessera_exec* exec, tessera_status* status);
/* What this machine has and which kernels it can run, in words or as JSON; returns its length as snprintf does. */
TESSERA_API size_t tessera_devices(int json, char* text, size_t capacity);
TESSERA_API uint32_t tessera_version(void); /* major << 16 | minor << 8 | patch */

#ifdef __cplusplus
}
#endif
#endif
