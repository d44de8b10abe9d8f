#pragma once

#include "common/base/log.h"

namespace centroid::log {

/// Set the least level that is written; at any time, from any thread.
void set_level(Level level);

}  // namespace centroid::log
