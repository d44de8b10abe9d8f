#pragma once

#include "common/base/config.h"
#include "common/optim/optimizer_config.h"

namespace centroid {

/// Add the settings of an optimizer, by the names of all programs. `optimizer` outlives the schema.
void add_optimizer_fields(config::Schema& schema, OptimizerConfig& optimizer);

}  // namespace centroid
