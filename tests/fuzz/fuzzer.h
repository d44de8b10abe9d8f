#pragma once

#include <cstddef>
#include <cstdint>

/// The function of a fuzzer: libFuzzer's, or one of those that corpus_test.cc calls.
#ifdef CENTROID_FUZZ
#define CENTROID_FUZZER(name) extern "C" int LLVMFuzzerTestOneInput
#else
#define CENTROID_FUZZER(name) extern "C" int fuzz_##name
#endif
