#pragma once

#include "common/base/log.h"

namespace centroid::log {

/// The least level that is written, at any time and from any thread (what `configure` set first).
void set_level(Level level);

}  // namespace centroid::log
