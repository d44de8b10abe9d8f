#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace centroid {

/// The name among `known` that was most likely meant: with the fewest edits (insert, delete,
/// replace, swap neighbours; at most a third of the longer name), or the only one with the prefix
/// `name`, or the only one with that last part ("every_rounds"). Empty if none is near. Case is
/// ignored, and '-' and '.' equal '_'.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

/// `; did you mean "checkpoints"?`, or nothing. Lists up to three names with the prefix `name`.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace centroid
