#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/schema.h"
#include "server/api/view.h"

/// The descriptions of the answers of the control plane, each in the *_routes.cc of its route.
namespace centroid::server {

View<ClusterView> describe(const ClusterView*);
View<WorkerView> describe(const WorkerView*);
View<RoundView> describe(const RoundView*);
View<CurvesView> describe(const CurvesView*);
View<CurvePointView> describe(const CurvePointView*);
View<EpochView> describe(const EpochView*);
View<EpochWorkerView> describe(const EpochWorkerView*);
View<WaitView> describe(const WaitView*);
View<ServerView> describe(const ServerView*);
View<CheckpointView> describe(const CheckpointView*);
View<CheckpointFileView> describe(const CheckpointFileView*);
View<RestoreView> describe(const RestoreView*);
View<ParametersView> describe(const ParametersView*);
View<EvictionView> describe(const EvictionView*);
View<ScaleView> describe(const ScaleView*);
View<NetworkView> describe(const NetworkView*);
View<TableView> describe(const TableView*);
View<PartView> describe(const PartView*);

/// A number that training programs name themselves.
struct ScalarView {
  std::string name;
  double mean = 0;
  std::uint64_t count = 0;
};
View<ScalarView> describe(const ScalarView*);
std::vector<ScalarView> list_of(const Scalars& scalars);

}  // namespace centroid::server
