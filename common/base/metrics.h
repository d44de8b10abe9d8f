#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace centroid::metrics {

using Labels = std::map<std::string, std::string>;

/// What one series records. Every operation is thread-safe.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void add(double amount) = 0;      ///< a histogram observes it
  virtual void set(double value) = 0;       ///< of a gauge
  virtual double value() const = 0;         ///< of a histogram the sum
  virtual std::uint64_t count() const = 0;  ///< of a histogram
};

/// Handles are cheap to copy. Look-up happens once at start; every operation is thread-safe. A
/// default handle does nothing.
class Counter {
 public:
  Counter() = default;
  explicit Counter(Recorder* recorder) : recorder_(recorder) {}
  void add(double amount = 1) const {
    if (recorder_ != nullptr) recorder_->add(amount);
  }
  double value() const { return recorder_ == nullptr ? 0 : recorder_->value(); }

 private:
  Recorder* recorder_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  explicit Gauge(Recorder* recorder) : recorder_(recorder) {}
  void set(double value) const {
    if (recorder_ != nullptr) recorder_->set(value);
  }
  void add(double amount) const {
    if (recorder_ != nullptr) recorder_->add(amount);
  }
  double value() const { return recorder_ == nullptr ? 0 : recorder_->value(); }

 private:
  Recorder* recorder_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  explicit Histogram(Recorder* recorder) : recorder_(recorder) {}
  void observe(double value) const {
    if (recorder_ != nullptr) recorder_->add(value);
  }
  double sum() const { return recorder_ == nullptr ? 0 : recorder_->value(); }
  std::uint64_t count() const { return recorder_ == nullptr ? 0 : recorder_->count(); }

 private:
  Recorder* recorder_ = nullptr;
};

/// Owner of all series of one process; must outlive the handles. This one records nothing: for a
/// library in a program that is not ours. Our programs have a PrometheusRegistry.
class Registry {
 public:
  Registry() = default;
  virtual ~Registry() = default;
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  /// Name `centroid_<area>_<what>_<unit>[_total]`, base units; the same name and labels give the
  /// same series.
  virtual Counter counter(const std::string& /*name*/, const std::string& /*help*/,
                          const Labels& /*labels*/ = {}) {
    return Counter();
  }
  virtual Gauge gauge(const std::string& /*name*/, const std::string& /*help*/,
                      const Labels& /*labels*/ = {}) {
    return Gauge();
  }
  virtual Histogram histogram(const std::string& /*name*/, const std::string& /*help*/,
                              const std::vector<double>& /*bounds*/,
                              const Labels& /*labels*/ = {}) {
    return Histogram();
  }
  /// Remove one series (a worker that left), so that the number of series stays bounded. Its
  /// handles must not be used any more.
  virtual void remove(const std::string& /*name*/, const Labels& /*labels*/) {}

  /// Called before each serialisation, to refresh gauges that are read on demand.
  virtual void on_collect(std::function<void()> /*refresh*/) {}

  /// Text exposition format 0.0.4 for `/metrics`.
  virtual std::string serialize() const { return {}; }
};

/// Upper bounds in seconds from 50 us to 30 s, for stages of a round.
inline const std::vector<double>& latency_bounds() {
  static const std::vector<double> kBounds = {50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3,
                                              5e-3,  10e-3,  25e-3,  50e-3,  0.1,  0.25,
                                              0.5,   1,      2.5,    5,      10,   30};
  return kBounds;
}

}  // namespace centroid::metrics
