#pragma once

#include <string>

#include "server/api/view.h"

/// A picture of the model as a self-contained SVG document: no script, no link, colours for light
/// and dark. Pure.
namespace centroid::server {

/// The layers in their order: each with its tensors, their shapes and numbers of parameters, and
/// its share. A layer is the name before a tensor's last word ("layers.0"), or, with a number in
/// the name, up to that ("blocks.0"); neighbours that differ by this number only are one box with
/// their count.
/// bounds  64 boxes, 24 tensors in each; the rest is counted
std::string model_picture(const std::string& spec, const ParametersView& parameters);

}  // namespace centroid::server
