#include "server/state/curves.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <tuple>
#include <type_traits>
#include <utility>

namespace centroid::server {

namespace {

/// In the order of the text.
template <class Point>
auto fields_of(Point& point) {
  return std::tie(point.first, point.last, point.rounds, point.samples, point.seconds,
                  point.unix_seconds, point.round_seconds, point.samples_per_second, point.loss,
                  point.accuracy, point.test_loss, point.test_accuracy, point.learning_rate,
                  point.gradient_norm, point.workers);
}

/// The mean of two values that may be unknown (NaN).
double mean(double a, double weight_a, double b, double weight_b) {
  if (std::isnan(a) || std::isnan(b) || weight_a + weight_b == 0) return std::isnan(b) ? a : b;
  return (a * weight_a + b * weight_b) / (weight_a + weight_b);
}

double newest(double before, double after) { return std::isnan(after) ? before : after; }

/// `next` follows `point`, and becomes part of it.
void merge(CurvePointView& point, const CurvePointView& next) {
  const auto rounds = static_cast<double>(point.rounds), more = static_cast<double>(next.rounds);
  const auto samples = static_cast<double>(point.samples),
             more_samples = static_cast<double>(next.samples);
  point.loss = mean(point.loss, samples, next.loss, more_samples);
  point.accuracy = mean(point.accuracy, samples, next.accuracy, more_samples);
  point.samples_per_second = mean(point.samples_per_second, rounds * point.round_seconds,
                                  next.samples_per_second, more * next.round_seconds);
  point.round_seconds = mean(point.round_seconds, rounds, next.round_seconds, more);
  point.gradient_norm = mean(point.gradient_norm, rounds, next.gradient_norm, more);
  point.workers = mean(point.workers, rounds, next.workers, more);
  point.learning_rate = next.learning_rate;
  point.test_loss = newest(point.test_loss, next.test_loss);
  point.test_accuracy = newest(point.test_accuracy, next.test_accuracy);
  point.last = next.last;
  point.rounds += next.rounds;
  point.samples += next.samples;
  point.seconds = next.seconds;
  point.unix_seconds = next.unix_seconds;
}

template <class Number>
void append(std::string& text, Number value) {
  std::array<char, 32> digits;
  std::to_chars_result done;
  if constexpr (std::is_floating_point_v<Number>)
    done = std::to_chars(digits.begin(), digits.end(), value, std::chars_format::general, 10);
  else
    done = std::to_chars(digits.begin(), digits.end(), value);
  text.append(digits.data(), done.ptr).push_back(' ');
}

template <class Number>
bool take(std::string_view& text, Number& value) {
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end == text.data() + text.size() || *end != ' ') return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

}  // namespace

void Curves::add(CurvePointView round) {
  if (last_round() >= round.first) forget_from(round.first);
  round.last = round.first;
  round.rounds = 1;
  round.seconds = round.round_seconds + (points_.empty() ? 0 : points_.back().seconds);
  if (!points_.empty() && points_.back().rounds < rounds_per_point_)
    return merge(points_.back(), round);
  if (points_.size() == kMost) halve();
  points_.push_back(round);
}

void Curves::evaluated(double loss, double accuracy) {
  if (points_.empty()) return;
  points_.back().test_loss = loss;
  points_.back().test_accuracy = accuracy;
}

void Curves::halve() {
  for (std::size_t i = 0; i + 1 < points_.size(); i += 2) {
    merge(points_[i], points_[i + 1]);
    points_[i / 2] = points_[i];
  }
  if (points_.size() % 2 == 1) points_[points_.size() / 2] = points_.back();
  points_.resize((points_.size() + 1) / 2);
  rounds_per_point_ *= 2;
  ++revision_;
}

void Curves::forget_from(std::uint64_t round) {
  while (!points_.empty() && last_round() >= round) points_.pop_back();
  if (points_.empty()) rounds_per_point_ = 1;
  ++revision_;
}

void Curves::go_on(Curves before) {
  const std::uint64_t revision = std::max(revision_, before.revision_) + 1;
  if (before.last_round() >= last_round()) *this = std::move(before);
  revision_ = revision;
}

std::span<const CurvePointView> Curves::after(std::uint64_t round) const {
  const auto first = std::ranges::upper_bound(points_, round, {}, &CurvePointView::last);
  return {first, points_.end()};
}

std::string Curves::to_text() const {
  Curves coarse = *this;
  while (coarse.points_.size() > kSaved) coarse.halve();
  std::string text;
  append(text, coarse.rounds_per_point_);
  for (const CurvePointView& point : coarse.points_)
    std::apply([&text](const auto&... field) { (append(text, field), ...); }, fields_of(point));
  return text;
}

Curves Curves::of_text(std::string_view text) {
  Curves curves;
  if (!take(text, curves.rounds_per_point_) || curves.rounds_per_point_ == 0) return Curves();
  while (!text.empty()) {
    CurvePointView point;
    const auto read = [&text](auto&... field) { return (take(text, field) && ...); };
    const bool is_point = std::apply(read, fields_of(point));
    const bool is_next = point.first > curves.last_round() && point.last >= point.first;
    if (!is_point || !is_next || curves.points_.size() == kMost) return Curves();
    curves.points_.push_back(point);
  }
  return curves;
}

}  // namespace centroid::server
