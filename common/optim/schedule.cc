#include "common/optim/schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>

#include "common/tensor/text.h"

namespace centroid {
namespace {

using Kind = LearningRateSchedule::Kind;

constexpr std::array<std::string_view, 5> kNames{"constant", "step", "linear", "cosine",
                                                 "onecycle"};
constexpr double kOneCycleFloor = 4e-6;

/// A field: the kinds that accept and require it, and its values.
struct Field {
  std::string_view name;
  std::uint8_t kinds, needed_by;  // bit per Kind
  std::string_view may_be;
  bool (*set)(LearningRateSchedule&, double);
};

constexpr std::uint8_t bit(Kind kind) { return static_cast<std::uint8_t>(1u << int(kind)); }
constexpr std::uint8_t kLong = bit(Kind::kLinear) | bit(Kind::kCosine) | bit(Kind::kOneCycle);

bool set_count(std::uint64_t& target, double value, double least) {
  if (!(value >= least && value <= 1e15 && value == std::floor(value))) return false;
  target = static_cast<std::uint64_t>(value);
  return true;
}

bool set_share(double& target, double value, bool is_inner) {
  if (!(value >= 0 && value <= 1) || (is_inner && (value == 0 || value == 1))) return false;
  target = value;
  return true;
}

constexpr std::array<Field, 7> kFields{{
    {"rounds", kLong, kLong, "an integer, at least 1",
     [](LearningRateSchedule& s, double v) { return set_count(s.rounds, v, 1); }},
    {"warmup", 0xff & ~bit(Kind::kOneCycle), 0, "an integer, at least 0",
     [](LearningRateSchedule& s, double v) { return set_count(s.warmup, v, 0); }},
    {"every", bit(Kind::kStep), bit(Kind::kStep), "an integer, at least 1",
     [](LearningRateSchedule& s, double v) { return set_count(s.every, v, 1); }},
    {"factor", bit(Kind::kStep), 0, "above 0 and below 1",
     [](LearningRateSchedule& s, double v) { return set_share(s.step_factor, v, true); }},
    {"floor", 0xff & ~bit(Kind::kConstant), 0, "from 0 to 1",
     [](LearningRateSchedule& s, double v) { return set_share(s.floor, v, false); }},
    {"rise", bit(Kind::kOneCycle), 0, "above 0 and below 1",
     [](LearningRateSchedule& s, double v) { return set_share(s.rise, v, true); }},
    {"start", bit(Kind::kOneCycle), 0, "from 0 to 1",
     [](LearningRateSchedule& s, double v) { return set_share(s.start, v, false); }},
}};

std::string fields_of(Kind kind) {
  std::string out;
  for (const Field& field : kFields)
    if ((field.kinds & bit(kind)) != 0) (out += out.empty() ? "" : ", ") += field.name;
  return out;
}

Error bad(const std::string& what) { return {ErrorCode::kInvalidArgument, what}; }

Status set_field(LearningRateSchedule& schedule, std::string_view item, std::uint8_t& seen) {
  const std::size_t equals = item.find('=');
  if (equals == std::string_view::npos || equals == 0)
    return bad("field \"" + printable(item) + "\" is not field=value");
  const std::string_view name = item.substr(0, equals), text = item.substr(equals + 1);
  const auto field = std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) {
    return f.name == name && (f.kinds & bit(schedule.kind)) != 0;
  });
  if (field == kFields.end())
    return bad("field \"" + printable(name) + "\" is unknown, " +
               std::string(kNames[std::size_t(schedule.kind)]) + " takes " +
               fields_of(schedule.kind));
  const auto at = static_cast<std::uint8_t>(1u << (field - kFields.begin()));
  if ((seen & at) != 0) return bad("field \"" + std::string(name) + "\" appears twice");
  seen |= at;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !field->set(schedule, value))
    return bad("field \"" + std::string(name) + "\" is \"" + printable(text) + "\", expected " +
               std::string(field->may_be));
  return {};
}

/// Half a cosine from `from` to `to`, x in [0, 1].
double half_cosine(double from, double to, double x) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * x)) / 2;
}

}  // namespace

Result<LearningRateSchedule> LearningRateSchedule::parse(std::string_view text) {
  const auto refuse = [&](const std::string& what) {
    return bad("learning rate schedule \"" + printable(text, 128) + "\": " + what);
  };
  const std::size_t colon = text.find(':');
  const auto found = std::find(kNames.begin(), kNames.end(), text.substr(0, colon));
  if (found == kNames.end())
    return refuse(
        "the name is not constant, step, linear, cosine or onecycle, as in "
        "cosine:rounds=1000,warmup=50,floor=0.1");
  LearningRateSchedule schedule;
  schedule.kind = static_cast<Kind>(found - kNames.begin());
  if (schedule.kind == Kind::kOneCycle) schedule.floor = kOneCycleFloor;
  std::uint8_t seen = 0;
  for (std::size_t at = colon; at != std::string_view::npos;) {
    const std::size_t next = text.find(',', at + 1);
    const auto item = text.substr(at + 1, next == std::string_view::npos ? next : next - at - 1);
    if (const Status set = set_field(schedule, item, seen); !set.ok())
      return refuse(set.error().message());
    at = next;
  }
  for (std::size_t i = 0; i < kFields.size(); ++i)
    if ((kFields[i].needed_by & bit(schedule.kind)) != 0 && (seen >> i & 1u) == 0)
      return refuse("field \"" + std::string(kFields[i].name) + "\" is missing");
  if (schedule.rounds > 0 && schedule.warmup >= schedule.rounds)
    return refuse("field \"warmup\" must be below rounds");
  if (schedule.kind == Kind::kOneCycle && schedule.rise * double(schedule.rounds) <= 1)
    return refuse("field \"rise\": its share of the rounds must be more than one round");
  return schedule;
}

double LearningRateSchedule::factor(std::uint64_t step) const {
  if (step <= warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  const auto e = static_cast<double>(step - 1 - warmup);
  const auto length = static_cast<double>(rounds - std::min(rounds, warmup));
  switch (kind) {
    case Kind::kConstant:
      return 1;
    case Kind::kStep:
      return std::max(floor, std::pow(step_factor, std::floor(e / static_cast<double>(every))));
    case Kind::kLinear:
      return 1 - (1 - floor) * std::min(1.0, e / length);
    case Kind::kCosine:
      return half_cosine(1, floor, std::min(1.0, e / length));
    case Kind::kOneCycle: {
      const double top = rise * length - 1;
      if (e <= top) return half_cosine(start, 1, e / top);
      return half_cosine(1, floor, std::min(1.0, (e - top) / (length - 1 - top)));
    }
  }
  return 1;
}

}  // namespace centroid
