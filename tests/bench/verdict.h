#pragma once

#include <cstdio>

namespace centroid::bench {

enum class Bar { kAtLeast, kAtMost };

/// Print what was reached beside the bar. 1, a program's exit status: it was missed. A bar of 0 is
/// none.
inline int verdict(const char* what, double reached, Bar kind, double bar, const char* unit,
                   std::FILE* out = stdout) {
  if (bar == 0) return 0;
  const bool is_held = kind == Bar::kAtLeast ? reached >= bar : reached <= bar;
  std::fprintf(out, "bar: %s at %s %.2f %s: %.2f, %s\n", what,
               kind == Bar::kAtLeast ? "least" : "most", bar, unit, reached,
               is_held ? "held" : "MISSED");
  return is_held ? 0 : 1;
}

}  // namespace centroid::bench
