# Cross-compiles for 64-bit Arm with Debian's g++-aarch64-linux-gnu; what is built runs under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR "qemu-aarch64;-L;/usr/aarch64-linux-gnu")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)

# fmt is used as headers alone, so the package of the building machine serves.
file(GLOB fmt_config /usr/lib/*/cmake/fmt)
if(fmt_config)
  list(GET fmt_config 0 fmt_DIR)
endif()
