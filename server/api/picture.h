#pragma once

#include <span>
#include <string>

#include "server/api/view.h"

/// Pictures of what is trained and by whom, as SVG documents that need nothing else: no script, no
/// link, colours for light and dark. Pure.
namespace centroid::server {

/// The layers in their order: each with its tensors, their shapes and numbers of parameters, and
/// its part of all. A layer is what stands before a tensor's last word ("layers.0"), or, with a
/// number in the name, up to that ("blocks.0"); neighbours that differ by this number only are one
/// box that says how many.
/// bounds  64 boxes, 24 tensors in each; what is more is counted
std::string model_picture(const std::string& spec, const ParametersView& parameters);

/// The leader with the job's state, shard servers beside it, the workers below: state, devices,
/// time of a step, and what part of its time each computes.
/// bounds  64 workers, 16 servers; what is more is counted
std::string cluster_picture(const ClusterView& cluster, std::span<const WorkerView> workers,
                            std::span<const ServerView> servers);

}  // namespace centroid::server
