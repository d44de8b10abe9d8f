#include "common/base/prometheus_registry.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <memory>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <utility>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include "common/base/result.h"

namespace centroid::metrics {
namespace {

// Names that the exposition format allows; ours have no colon.
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

/// The text before the numbers of one series, line by line. Built once: otherwise names and labels
/// take most of a scrape's time, and the library's serializer uses a stream with a locale. source
/// Prometheus text exposition format 0.0.4, "Text format details"
std::vector<std::string> line_heads(const std::string& name, const Labels& labels,
                                    const std::vector<double>* bounds) {
  std::string inner;
  for (const auto& [label, value] : labels) {
    inner.append(inner.empty() ? "" : ",").append(label).append("=\"");
    append_escaped(inner, value, true);
    inner += '"';
  }
  const auto head = [&](std::string_view suffix, const std::string& more) {
    std::string line = name;
    line.append(suffix);
    const bool has_both = !inner.empty() && !more.empty();
    if (!inner.empty() || !more.empty())
      line.append("{").append(inner).append(has_both ? "," : "").append(more).append("}");
    return line.append(" ");
  };
  if (bounds == nullptr) return {head("", "")};
  std::vector<std::string> heads;
  for (const double bound : *bounds) {
    std::string text = "le=\"";
    append_number(text, bound);
    heads.push_back(head("_bucket", text.append("\"")));
  }
  heads.push_back(head("_bucket", "le=\"+Inf\""));
  heads.push_back(head("_sum", ""));
  heads.push_back(head("_count", ""));
  return heads;
}

void append_line(std::string& out, const std::string& head, double value) {
  out += head;
  append_number(out, value);
  out += '\n';
}

class Series : public Recorder {
 public:
  virtual void append_to(std::string& out) const = 0;
};

template <class Metric>
class SeriesOf final : public Series {
 public:
  template <class... Args>
  explicit SeriesOf(std::vector<std::string> heads, const Args&... args)
      : metric_(args...), heads_(std::move(heads)) {}

  void add(double amount) override {
    if constexpr (kIsHistogram)
      metric_.Observe(amount);
    else
      metric_.Increment(amount);
  }
  void set(double value) override {
    if constexpr (std::is_same_v<Metric, prometheus::Gauge>) metric_.Set(value);
  }
  double value() const override {
    if constexpr (kIsHistogram)
      return metric_.Collect().histogram.sample_sum;
    else
      return metric_.Value();
  }
  std::uint64_t count() const override {
    if constexpr (kIsHistogram) return metric_.Collect().histogram.sample_count;
    return 0;
  }

  void append_to(std::string& out) const override {
    if constexpr (kIsHistogram) {
      const auto histogram = metric_.Collect().histogram;
      const std::size_t buckets = heads_.size() - 2;
      CENTROID_CHECK(histogram.bucket.size() == buckets);  // the last one is +Inf
      for (std::size_t i = 0; i < buckets; ++i)
        append_line(out, heads_[i], static_cast<double>(histogram.bucket[i].cumulative_count));
      append_line(out, heads_[buckets], histogram.sample_sum);
      append_line(out, heads_[buckets + 1], static_cast<double>(histogram.sample_count));
    } else {
      append_line(out, heads_[0], metric_.Value());
    }
  }

 private:
  static constexpr bool kIsHistogram = std::is_same_v<Metric, prometheus::Histogram>;

  Metric metric_;
  const std::vector<std::string> heads_;
};

template <class Metric>
constexpr const char* kType = std::is_same_v<Metric, prometheus::Counter> ? "counter"
                              : std::is_same_v<Metric, prometheus::Gauge> ? "gauge"
                                                                          : "histogram";

}  // namespace

struct PrometheusRegistry::Impl {
  struct Family {
    std::string type;
    std::string head;  ///< HELP and TYPE
    std::vector<double> bounds;
    std::map<Labels, std::shared_ptr<Series>> series;
  };

  std::mutex mutex;
  std::map<std::string, Family> families;
  std::vector<std::function<void()>> refreshers;
  std::atomic<std::size_t> text_bytes = 0;  ///< of the last serialisation

  static std::string head_of(const std::string& name, const std::string& help,
                             const std::string& type) {
    std::string head = "# HELP " + name + " ";
    append_escaped(head, help, false);
    return head.append("\n# TYPE ").append(name).append(" ").append(type).append("\n");
  }

  // Find or make one series. A name with two types, or a histogram with two sets of bounds, is a
  // bug in our code.
  template <class Metric, class... Args>
  Recorder* series(const std::string& name, const std::string& help, const Labels& labels,
                   const std::vector<double>& bounds, const Args&... args) {
    CENTROID_CHECK(is_name(name));
    CENTROID_CHECK(are_labels(labels));
    const std::scoped_lock lock(mutex);
    const std::string type = kType<Metric>;
    auto found = families.find(name);
    if (found == families.end())
      found = families.emplace(name, Family{type, head_of(name, help, type), bounds, {}}).first;
    Family& family = found->second;
    CENTROID_CHECK(family.type == type);
    CENTROID_CHECK(family.bounds == bounds);
    std::shared_ptr<Series>& slot = family.series[labels];
    if (slot == nullptr) {
      const bool is_histogram = std::is_same_v<Metric, prometheus::Histogram>;
      slot = std::make_shared<SeriesOf<Metric>>(
          line_heads(name, labels, is_histogram ? &bounds : nullptr), args...);
    }
    return slot.get();
  }
};

PrometheusRegistry::PrometheusRegistry() : impl_(std::make_unique<Impl>()) {}
PrometheusRegistry::~PrometheusRegistry() = default;

Counter PrometheusRegistry::counter(const std::string& name, const std::string& help,
                                    const Labels& labels) {
  return Counter(impl_->series<prometheus::Counter>(name, help, labels, {}));
}

Gauge PrometheusRegistry::gauge(const std::string& name, const std::string& help,
                                const Labels& labels) {
  return Gauge(impl_->series<prometheus::Gauge>(name, help, labels, {}));
}

Histogram PrometheusRegistry::histogram(const std::string& name, const std::string& help,
                                        const std::vector<double>& bounds, const Labels& labels) {
  CENTROID_CHECK(std::is_sorted(bounds.begin(), bounds.end(), std::less_equal<>()));
  return Histogram(impl_->series<prometheus::Histogram>(name, help, labels, bounds, bounds));
}

void PrometheusRegistry::remove(const std::string& name, const Labels& labels) {
  const std::scoped_lock lock(impl_->mutex);
  const auto family = impl_->families.find(name);
  if (family != impl_->families.end()) family->second.series.erase(labels);
}

void PrometheusRegistry::on_collect(std::function<void()> refresh) {
  const std::scoped_lock lock(impl_->mutex);
  impl_->refreshers.push_back(std::move(refresh));
}

std::string PrometheusRegistry::serialize() const {
  std::vector<std::function<void()>> refreshers;
  {
    const std::scoped_lock lock(impl_->mutex);
    refreshers = impl_->refreshers;
  }
  for (const auto& refresh : refreshers) refresh();  // unlocked: they may make series
  // Training must not wait for this thread, which may have a low priority.
  std::vector<std::pair<const std::string*, std::vector<std::shared_ptr<Series>>>> families;
  {
    const std::scoped_lock lock(impl_->mutex);
    for (const auto& [name, family] : impl_->families) {
      if (family.series.empty()) continue;
      auto& all = families.emplace_back(&family.head, family.series.size()).second;
      std::ranges::transform(family.series, all.begin(),
                             [](const auto& one) { return one.second; });
    }
  }
  std::string out;
  out.reserve(impl_->text_bytes + impl_->text_bytes / 8);
  for (const auto& [head, all] : families) {
    out += *head;
    for (const auto& series : all) series->append_to(out);
  }
  impl_->text_bytes = out.size();
  return out;
}

}  // namespace centroid::metrics
