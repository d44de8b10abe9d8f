#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace centroid {

/// Of `known`, the name that was most likely meant by `name`: by the fewest edits (insert, delete,
/// replace, swap neighbours), of which a third of the longer name are too many; or the only one
/// that `name` begins, or the one whose last part it is ("every_rounds"). Empty where none is near.
/// Capitals, '-' and '.' for '_' count for nothing.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

/// `; did you mean "checkpoints"?`, or nothing. Of several that `name` begins it lists three.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace centroid
