#pragma once

#include <memory>
#include <string>
#include <utility>

#include "tests/support/cluster.h"
#include "tests/support/late_device.h"

namespace centroid::test {

/// A worker's model whose GPUs are those of late_device.h.
inline std::shared_ptr<CustomModel> late_model(const std::string& spec,
                                               worker::GroupOptions options) {
  const std::shared_ptr<worker::Model> model = worker::make_model(spec).value();
  auto custom = std::make_shared<CustomModel>();
  custom->manifest = model->manifest();
  custom->initialize = [model](std::uint64_t seed, std::span<float> params) {
    model->initialize(seed, params);
  };
  options.open = simt::open_late;
  custom->make_group = [model, options = std::move(options)] {
    return worker::make_replica_group(*model, options).value();
  };
  return custom;
}

}  // namespace centroid::test
