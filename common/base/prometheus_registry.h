#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/metrics.h"

namespace centroid::metrics {

/// The series of a process that shows them at `/metrics`. Only prometheus_registry.cc includes the
/// metrics library.
class PrometheusRegistry final : public Registry {
 public:
  PrometheusRegistry();
  ~PrometheusRegistry() override;

  Counter counter(const std::string& name, const std::string& help,
                  const Labels& labels = {}) override;
  Gauge gauge(const std::string& name, const std::string& help, const Labels& labels = {}) override;
  Histogram histogram(const std::string& name, const std::string& help,
                      const std::vector<double>& bounds, const Labels& labels = {}) override;
  void remove(const std::string& name, const Labels& labels) override;
  void on_collect(std::function<void()> refresh) override;
  std::string serialize() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::metrics
