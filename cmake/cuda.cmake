# Sets TESSERA_HAS_CUDA: CUDA is wanted and an nvcc that knows every target is there. Else the build goes on without it.
set(TESSERA_HAS_CUDA OFF)
set(TESSERA_CUDA_TARGETS "sm_80,sm_90,sm_100,sm_120,compute_80" CACHE STRING
  "Targets of the portable CUDA kernels, one compute_80 pass")
if(TESSERA_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit QUIET)
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    message(STATUS "tessera: no nvcc found, the CUDA kernels are left out")
  elseif(CUDAToolkit_VERSION VERSION_LESS 12.9)
    message(STATUS "tessera: CUDA ${CUDAToolkit_VERSION} found, 12.9 or later expected: the CUDA kernels are left out")
  else()
    # One compute_80 pass (src/CMakeLists.txt says which sources have more), native code for each generation (8.6 and
    # 8.9 run sm_80 code) and PTX for what comes later: one pass a target would cost 2.4 times as long. CMake 3.25 knows
    # neither that form nor C++20 for nvcc 13.
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/cmake/keep_ptxas_log.sh ${CMAKE_CUDA_COMPILER_LAUNCHER})
    enable_language(CUDA)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    set(TESSERA_HAS_CUDA ON)
    set(tessera_cuda_options -Xptxas=-v)
    message(STATUS "tessera: CUDA ${CUDAToolkit_VERSION} kernels for ${TESSERA_CUDA_TARGETS}")
  endif()
endif()
