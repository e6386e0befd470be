// What lies between the products and the attention of a decoder layer, as kernels on a stream. All rows are contiguous.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

// x [count, dim] = embedding[token] + position[the token's position].
void embed(const int32_t* tokens, const int32_t* positions, const __half* embedding, const __half* position,
           int64_t count, int64_t dim, float* x, cudaStream_t stream);
// y [count, dim] = x without its mean, over its standard deviation, times gain, plus bias.
void normalize(const float* x, const float* gain, const float* bias, int64_t count, int64_t dim, __half* y,
               cudaStream_t stream);
// x [count, dim] += product + bias.
void add(const float* product, const float* bias, int64_t count, int64_t dim, float* x, cudaStream_t stream);
// y [count, dim] = product + bias in f16, through GELU where asked.
void round_to_half(const float* product, const float* bias, bool gelu, int64_t count, int64_t dim, __half* y,
                   cudaStream_t stream);
// tokens [count] become the likeliest of each row of logits [count, vocabulary], but none of `controls`; lengths
// [count] grow by one.
void choose(const float* logits, const int32_t* controls, int64_t controls_count, int64_t count, int64_t vocabulary,
            int32_t* tokens, int32_t* lengths, cudaStream_t stream);
