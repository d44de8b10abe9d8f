#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace centroid::metrics {

using Labels = std::map<std::string, std::string>;

/// Handles are cheap to copy. Look-up happens once at start; every operation is thread-safe. A
/// default handle does nothing.
class Counter {
 public:
  Counter() = default;
  void add(double amount = 1) const;
  double value() const;

 private:
  friend class Registry;
  void* impl_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  void set(double value) const;
  void add(double amount) const;
  double value() const;

 private:
  friend class Registry;
  void* impl_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  void observe(double value) const;
  double sum() const;
  std::uint64_t count() const;

 private:
  friend class Registry;
  void* impl_ = nullptr;
};

/// Owner of all series of one process; must outlive the handles. Only metrics.cc includes the
/// metrics library.
class Registry {
 public:
  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  /// Name `centroid_<area>_<what>_<unit>[_total]`, base units; the same name and labels give the
  /// same series.
  Counter counter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  Histogram histogram(const std::string& name, const std::string& help,
                      const std::vector<double>& bounds, const Labels& labels = {});
  /// Remove one series (a worker that left), so that the number of series stays bounded. Its
  /// handles must not be used any more.
  void remove(const std::string& name, const Labels& labels);

  /// Called before each serialisation, to refresh gauges that are read on demand.
  void on_collect(std::function<void()> refresh);

  /// Text exposition format 0.0.4 for `/metrics`.
  std::string serialize() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Upper bounds in seconds from 50 us to 30 s, for stages of a round.
const std::vector<double>& latency_bounds();

}  // namespace centroid::metrics
