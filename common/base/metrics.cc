#include "common/base/metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <mutex>
#include <string_view>
#include <variant>

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "common/base/result.h"

namespace centroid::metrics {
namespace {

using FamilyPointer =
    std::variant<prometheus::Family<prometheus::Counter>*, prometheus::Family<prometheus::Gauge>*,
                 prometheus::Family<prometheus::Histogram>*>;

// Names as the exposition format allows them; ours have no colon.
bool is_name(std::string_view name) {
  const auto is_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && !(name.front() >= '0' && name.front() <= '9') &&
         std::all_of(name.begin(), name.end(), is_word);
}

bool are_labels(const Labels& labels) {
  return std::all_of(labels.begin(), labels.end(), [](const auto& label) {
    return is_name(label.first) && label.first != "le" && !label.first.starts_with("__");
  });
}

/// source  Prometheus text exposition format 0.0.4, "Text format details"
void append_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += std::isnan(value) ? "NaN" : value < 0 ? "-Inf" : "+Inf";
    return;
  }
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  out.append(text, end);
}

void append_escaped(std::string& out, std::string_view text, bool is_label) {
  for (const char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '"' && is_label)
      out += "\\\"";
    else
      out += c;
  }
}

/// Lines of one family. Not by the library's own serializer: that one goes through a stream with a
/// locale, which took most of a scrape's time.
class Lines {
 public:
  Lines(std::string& out, const prometheus::MetricFamily& family) : out_(out), family_(family) {}

  void head(std::string_view type) {
    out_.append("# HELP ").append(family_.name).append(" ");
    append_escaped(out_, family_.help, false);
    out_.append("\n# TYPE ").append(family_.name).append(" ").append(type).append("\n");
  }
  void sample(const prometheus::ClientMetric& metric, std::string_view suffix, double value,
              std::string_view bound = {}) {
    out_.append(family_.name).append(suffix);
    if (!metric.label.empty() || !bound.empty()) {
      char separator = '{';
      for (const auto& label : metric.label) {
        out_.append(1, separator).append(label.name).append("=\"");
        append_escaped(out_, label.value, true);
        out_ += '"';
        separator = ',';
      }
      if (!bound.empty()) out_.append(1, separator).append("le=\"").append(bound).append("\"");
      out_ += '}';
    }
    out_ += ' ';
    append_number(out_, value);
    out_ += '\n';
  }
  void histogram(const prometheus::ClientMetric& metric) {
    const auto& histogram = metric.histogram;
    const auto count = static_cast<double>(histogram.sample_count);
    std::string bound;
    for (const auto& bucket : histogram.bucket) {
      bound.clear();
      append_number(bound, bucket.upper_bound);
      sample(metric, "_bucket", static_cast<double>(bucket.cumulative_count), bound);
    }
    if (histogram.bucket.empty() || std::isfinite(histogram.bucket.back().upper_bound))
      sample(metric, "_bucket", count, "+Inf");
    sample(metric, "_sum", histogram.sample_sum);
    sample(metric, "_count", count);
  }

 private:
  std::string& out_;
  const prometheus::MetricFamily& family_;
};

std::string to_text(const std::vector<prometheus::MetricFamily>& families) {
  std::string out;
  out.reserve(64 * 1024);
  for (const prometheus::MetricFamily& family : families) {
    Lines lines(out, family);
    const bool is_histogram = family.type == prometheus::MetricType::Histogram;
    const bool is_counter = family.type == prometheus::MetricType::Counter;
    lines.head(is_histogram ? "histogram" : is_counter ? "counter" : "gauge");
    for (const prometheus::ClientMetric& metric : family.metric) {
      if (is_histogram)
        lines.histogram(metric);
      else
        lines.sample(metric, "", is_counter ? metric.counter.value : metric.gauge.value);
    }
  }
  return out;
}

}  // namespace

struct Registry::Impl {
  struct Family {
    FamilyPointer pointer;
    std::vector<double> bounds;
    std::map<Labels, void*> series;
  };

  prometheus::Registry registry;
  std::mutex mutex;
  std::map<std::string, Family> families;
  std::vector<std::function<void()>> refreshers;

  // Find or make one series. A name used for two types, or a histogram with two sets of bounds, is
  // a mistake in our own code.
  template <class Metric, class Build, class... Args>
  void* series(const std::string& name, const std::string& help, const Labels& labels,
               const std::vector<double>& bounds, Build build, const Args&... args) {
    CENTROID_CHECK(is_name(name));
    CENTROID_CHECK(are_labels(labels));
    const std::scoped_lock lock(mutex);
    auto found = families.find(name);
    if (found == families.end()) {
      prometheus::Family<Metric>* made = &build().Name(name).Help(help).Register(registry);
      found = families.emplace(name, Family{made, bounds, {}}).first;
    }
    Family& family = found->second;
    auto* const* pointer = std::get_if<prometheus::Family<Metric>*>(&family.pointer);
    CENTROID_CHECK(pointer != nullptr);
    CENTROID_CHECK(family.bounds == bounds);
    void*& slot = family.series[labels];
    if (slot == nullptr) slot = &(*pointer)->Add(labels, args...);
    return slot;
  }
};

Registry::Registry() : impl_(std::make_unique<Impl>()) {}
Registry::~Registry() = default;

Counter Registry::counter(const std::string& name, const std::string& help, const Labels& labels) {
  Counter handle;
  handle.impl_ =
      impl_->series<prometheus::Counter>(name, help, labels, {}, prometheus::BuildCounter);
  return handle;
}

Gauge Registry::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  Gauge handle;
  handle.impl_ = impl_->series<prometheus::Gauge>(name, help, labels, {}, prometheus::BuildGauge);
  return handle;
}

Histogram Registry::histogram(const std::string& name, const std::string& help,
                              const std::vector<double>& bounds, const Labels& labels) {
  CENTROID_CHECK(std::is_sorted(bounds.begin(), bounds.end(), std::less_equal<>()));
  Histogram handle;
  handle.impl_ = impl_->series<prometheus::Histogram>(name, help, labels, bounds,
                                                      prometheus::BuildHistogram, bounds);
  return handle;
}

void Registry::remove(const std::string& name, const Labels& labels) {
  const std::scoped_lock lock(impl_->mutex);
  const auto family = impl_->families.find(name);
  if (family == impl_->families.end()) return;
  const auto series = family->second.series.find(labels);
  if (series == family->second.series.end()) return;
  std::visit(
      [&]<class Metric>(prometheus::Family<Metric>* pointer) {
        pointer->Remove(static_cast<Metric*>(series->second));
      },
      family->second.pointer);
  family->second.series.erase(series);
}

void Registry::on_collect(std::function<void()> refresh) {
  const std::scoped_lock lock(impl_->mutex);
  impl_->refreshers.push_back(std::move(refresh));
}

std::string Registry::serialize() const {
  std::vector<std::function<void()>> refreshers;
  {
    const std::scoped_lock lock(impl_->mutex);
    refreshers = impl_->refreshers;
  }
  for (const auto& refresh : refreshers) refresh();  // unlocked: they may make series
  return to_text(impl_->registry.Collect());
}

void Counter::add(double amount) const {
  if (impl_ != nullptr) static_cast<prometheus::Counter*>(impl_)->Increment(amount);
}

double Counter::value() const {
  return impl_ == nullptr ? 0 : static_cast<prometheus::Counter*>(impl_)->Value();
}

void Gauge::set(double value) const {
  if (impl_ != nullptr) static_cast<prometheus::Gauge*>(impl_)->Set(value);
}

void Gauge::add(double amount) const {
  if (impl_ != nullptr) static_cast<prometheus::Gauge*>(impl_)->Increment(amount);
}

double Gauge::value() const {
  return impl_ == nullptr ? 0 : static_cast<prometheus::Gauge*>(impl_)->Value();
}

void Histogram::observe(double value) const {
  if (impl_ != nullptr) static_cast<prometheus::Histogram*>(impl_)->Observe(value);
}

double Histogram::sum() const {
  if (impl_ == nullptr) return 0;
  return static_cast<prometheus::Histogram*>(impl_)->Collect().histogram.sample_sum;
}

std::uint64_t Histogram::count() const {
  if (impl_ == nullptr) return 0;
  return static_cast<prometheus::Histogram*>(impl_)->Collect().histogram.sample_count;
}

const std::vector<double>& latency_bounds() {
  static const std::vector<double> kBounds = {50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3,
                                              5e-3,  10e-3,  25e-3,  50e-3,  0.1,  0.25,
                                              0.5,   1,      2.5,    5,      10,   30};
  return kBounds;
}

}  // namespace centroid::metrics
