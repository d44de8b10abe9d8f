#pragma once

#include <string_view>

/// Places where a test may kill the process: builds with CENTROID_TESTS only, elsewhere nothing.
///
/// CENTROID_TEST_FAULT=NAME:COUNT kills (SIGKILL) when NAME is reached for the COUNTth time.
/// CENTROID_TEST_HOLD=NAME:FILE holds up whoever reaches NAME while FILE exists, a minute at most.
/// CENTROID_TEST_FAULT_LOG=FILE appends each name to FILE when it is reached first, before that.
namespace centroid::fault {

/// Of the three points at which a file is replaced (replace_file.h): STEM.torn, half of the draft
/// is written; STEM.drafted, the draft is on the disk; STEM.renamed. A type, so that tests find all
/// of them in the sources.
struct Stem {
  explicit constexpr Stem(std::string_view text) : name(text) {}
  std::string_view name;
};

#ifdef CENTROID_FAULT_POINTS
void point(std::string_view name);
void point(Stem stem, std::string_view what);
/// For those that must not block: whether CENTROID_TEST_HOLD holds up NAME now.
bool is_held(std::string_view name);
#else
inline void point(std::string_view) {}
inline void point(Stem, std::string_view) {}
inline bool is_held(std::string_view) { return false; }
#endif

}  // namespace centroid::fault
