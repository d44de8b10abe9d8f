#pragma once

namespace centroid {
inline constexpr const char* kVersion = "0.1.0";
}
