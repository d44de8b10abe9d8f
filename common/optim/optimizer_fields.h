#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/base/config.h"
#include "common/optim/optimizer_config.h"

namespace centroid {

/// Add the settings of an optimizer, by the names of all programs. `optimizer` outlives the schema.
void add_optimizer_fields(config::Schema& schema, OptimizerConfig& optimizer);

/// Names and values of these settings: two optimizers are the same where all are.
std::vector<std::pair<std::string, std::string>> optimizer_values(const OptimizerConfig& optimizer);

}  // namespace centroid
