set(serving_sources serve.cpp decoder.cpp decoder_cpu.cpp cache.cpp weights.cpp)
set(serving_cuda_sources decoder_cuda.cpp cuda_support.cpp layers.cu)
