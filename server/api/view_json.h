#pragma once

#include <nlohmann/json_fwd.hpp>

#include "server/api/view.h"

namespace centroid::server {

/// JSON objects with the views' own field names, in their order; numbers that are not finite become
/// null.
nlohmann::ordered_json to_json_object(const ClusterView& view);
nlohmann::ordered_json to_json_object(const WorkerView& view);
nlohmann::ordered_json to_json_object(const RoundView& view);
nlohmann::ordered_json to_json_object(const CurvesView& view);
nlohmann::ordered_json to_json_object(const EpochView& view);
nlohmann::ordered_json to_json_object(const EpochWorkerView& view);
nlohmann::ordered_json to_json_object(const WaitView& view);
nlohmann::ordered_json to_json_object(const ServerView& view);
nlohmann::ordered_json to_json_object(const CheckpointView& view);
nlohmann::ordered_json to_json_object(const TableView& view);

}  // namespace centroid::server
