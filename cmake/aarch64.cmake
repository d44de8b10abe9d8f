# Toolchain of the preset arm: 64-bit ARM by Debian's and Ubuntu's cross compiler (g++-aarch64-linux-gnu); tests run under qemu.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
find_program(CENTROID_QEMU NAMES qemu-aarch64-static qemu-aarch64)
if(CENTROID_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${CENTROID_QEMU} -L /usr/aarch64-linux-gnu)
endif()
