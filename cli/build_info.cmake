# Writes OUTPUT, a header with the commit and with one SHA-256 a device over the kernels' sources, so a result file
# says what was measured. The hash of a device is that of the lines "sha256  path" of its sources, sorted by path:
# src/DEVICE/** and the definitions that kernels share. With PRINT=cpu or PRINT=cuda it prints that hash instead.
# Usage: cmake -DSOURCE_DIR=. -DPRINT=cpu -P cli/build_info.cmake
cmake_minimum_required(VERSION 3.25)

function(hash_sources device result)
  file(GLOB_RECURSE paths RELATIVE ${SOURCE_DIR} ${SOURCE_DIR}/src/${device}/*)
  list(APPEND paths src/semantics.hpp src/sequence.hpp)
  list(SORT paths)
  set(lines "")
  foreach(path IN LISTS paths)
    if(EXISTS ${SOURCE_DIR}/${path})
      file(SHA256 ${SOURCE_DIR}/${path} hash)
      string(APPEND lines "${hash}  ${path}\n")
    endif()
  endforeach()
  string(SHA256 hash "${lines}")
  set(${result} ${hash} PARENT_SCOPE)
endfunction()

get_filename_component(SOURCE_DIR ${SOURCE_DIR} ABSOLUTE)
if(PRINT)
  hash_sources(${PRINT} hash)
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo ${hash})
  return()
endif()
hash_sources(cpu cpu_hash)
hash_sources(cuda cuda_hash)
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=* OUTPUT_VARIABLE commit
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
set(text "#pragma once
inline constexpr char kBuildCommit[] = \"${commit}\";
inline constexpr char kCpuSourcesSha256[] = \"${cpu_hash}\";
inline constexpr char kCudaSourcesSha256[] = \"${cuda_hash}\";
")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
