# Fuzzers (libFuzzer, clang). Each reads one format that comes from outside.
#   cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCENTROID_FUZZ=ON
#         -DCENTROID_SANITIZE=address,undefined,fuzzer-no-link
#   build/fuzz/fuzz/safetensors_fuzz -max_total_time=60 FOLDER tests/fuzz/corpus/safetensors
# name and library, one line per fuzzer: fuzz/<name>_fuzz.cc, fuzz/corpus/<name>, and fuzz/corpus_test.cc
set(fuzzers
  safetensors centroid::checkpoint
  checkpoint_manifest centroid::checkpoint
  rows_journal centroid::checkpoint
  journal centroid::checkpoint
  trace centroid::base
  digits centroid::data
  idx centroid::data
  http centroid::http
  frame centroid::transport
  greeting centroid::transport
  messages centroid::proto
  codec centroid::codec
  codec_spec centroid::codec
  rest centroid::api
  config centroid::service
  operator_files centroid::service
)

# The corpora, without libFuzzer: one program with all of them.
if(CENTROID_TESTS)
  set(sources fuzz/corpus_test.cc)
  set(libraries ${fuzzers})
  list(FILTER libraries INCLUDE REGEX "::")
  list(REMOVE_DUPLICATES libraries)
  set(names ${fuzzers})
  list(FILTER names EXCLUDE REGEX "::")
  foreach(name IN LISTS names)
    list(APPEND sources fuzz/${name}_fuzz.cc)
  endforeach()
  centroid_test(corpus_test LABEL unit SOURCES ${sources} DEPS ${libraries} nlohmann_json::nlohmann_json)
endif()

if(NOT CENTROID_FUZZ)
  return()
endif()
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "CENTROID_FUZZ needs clang, the compiler is ${CMAKE_CXX_COMPILER_ID}")
endif()

while(fuzzers)
  list(POP_FRONT fuzzers name library)
  if(NOT TARGET ${library})
    message(FATAL_ERROR "fuzzer ${name}: there is no library ${library}")
  endif()
  add_executable(${name}_fuzz fuzz/${name}_fuzz.cc)
  target_link_libraries(${name}_fuzz PRIVATE centroid_flags ${library} nlohmann_json::nlohmann_json centroid_no_fault_points)
  target_compile_definitions(${name}_fuzz PRIVATE CENTROID_FUZZ)
  target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name}_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
endwhile()
