#pragma once

#include <string_view>

/// Named places at which a test kills or stops a program.
///
/// There are two implementations, and the linker picks one. Released programs and libcentroid.so
/// have the one that does nothing (no_fault_points.cc). Tests, and the programs of process tests in
/// build/*/test-bin, have tests/support/fault_points.cc, which obeys
///
///   CENTROID_TEST_FAULT=NAME:COUNT      kill (SIGKILL) when NAME is reached for the COUNTth time
///   CENTROID_TEST_HOLD=NAME:FILE:COUNT  stop a thread that reaches NAME for the COUNTth time, or
///                                       later, while FILE exists, for ten minutes at most;
///                                       FILE.held exists while one is stopped
///   CENTROID_TEST_FAULT_LOG=FILE        append NAME to FILE when it is reached first, before that
///
/// COUNT and its colon are optional: without them, from the first time on.
///
/// cost    a call, even in a released program; none is in a loop over numbers
namespace centroid::fault {

/// The three points at which a file is replaced (replace_file.h): STEM.torn, half of the draft is
/// written; STEM.drafted, the draft is on the disk; STEM.renamed. A type, so that tests find all of
/// them in the sources.
struct Stem {
  explicit constexpr Stem(std::string_view text) : name(text) {}
  std::string_view name;
};

void point(std::string_view name);
void point(Stem stem, std::string_view what);

/// From here on an operation of common/storage on this thread aborts: it must not wait for a disk.
/// `thread`: the thread's name for the message, a string literal.
void forbid_storage_here(const char* thread);

/// Whether a test stops NAME now: for callers that must not block.
bool is_held(std::string_view name);

}  // namespace centroid::fault
