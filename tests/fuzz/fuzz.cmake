# Fuzzers (libFuzzer, clang). Each reads one format that comes from outside.
#   cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCENTROID_FUZZ=ON
#         -DCENTROID_SANITIZE=address,undefined,fuzzer-no-link
#   build/fuzz/fuzz/safetensors_fuzz -max_total_time=60
if(NOT CENTROID_FUZZ)
  return()
endif()
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "CENTROID_FUZZ needs clang, the compiler is ${CMAKE_CXX_COMPILER_ID}")
endif()

# name and library, one line per fuzzer: fuzz/<name>_fuzz.cc
set(fuzzers
  safetensors centroid::checkpoint
  checkpoint_manifest centroid::checkpoint
  rows_journal centroid::checkpoint
  frame centroid::transport
  greeting centroid::transport
  messages centroid::proto
  codec centroid::codec
  codec_spec centroid::codec
  rest centroid::api
  config centroid::service
  operator_files centroid::service
)

while(fuzzers)
  list(POP_FRONT fuzzers name library)
  if(NOT TARGET ${library})
    message(FATAL_ERROR "fuzzer ${name}: there is no library ${library}")
  endif()
  add_executable(${name}_fuzz fuzz/${name}_fuzz.cc)
  target_link_libraries(${name}_fuzz PRIVATE centroid_flags ${library} centroid_no_fault_points)
  target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name}_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
endwhile()
