#include "server/rows/row_spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "common/optim/schedule.h"
#include "server/rows/record_map.h"

namespace centroid::server {
namespace {

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

/// Keys of a table; fields of schedules have other names.
constexpr std::array<std::string_view, 13> kParts{
    "dim",  "optimizer", "lr",   "schedule",    "epsilon",   "l1",     "l2",
    "beta", "init",      "seed", "admit_after", "max_bytes", "max_age"};

/// One "key=value" of a table.
Status set_part(RowSpec& spec, std::string_view key, std::string_view value) {
  const auto bad = [&](std::string_view expected) {
    return Error(ErrorCode::kInvalidArgument, "table '" + spec.name + "': '" + std::string(key) +
                                                  "=" + std::string(value) + "': expected " +
                                                  std::string(expected));
  };
  const auto number = [&](auto& target) -> Status {
    const auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), target);
    if (failed == std::errc() && end == value.data() + value.size()) return {};
    return bad("a number");
  };
  if (key == "dim") return number(spec.dim);
  if (key == "lr") return number(spec.learning_rate);
  if (key == "schedule") {
    spec.schedule = value;
    return {};
  }
  if (key == "epsilon") return number(spec.epsilon);
  if (key == "l1") return number(spec.l1);
  if (key == "l2") return number(spec.l2);
  if (key == "beta") return number(spec.ftrl_beta);
  if (key == "seed") return number(spec.seed);
  if (key == "admit_after") return number(spec.admit_after);
  if (key == "max_bytes") return number(spec.max_bytes);
  if (key == "max_age") return number(spec.max_age);
  if (key == "optimizer") {
    CENTROID_ASSIGN(spec.rule, parse_row_rule(value));
    return {};
  }
  if (key == "init") {
    CENTROID_ASSIGN(spec.initializer, RowInitializer::parse(value));
    return {};
  }
  std::string names;
  for (const std::string_view part : kParts) (names += names.empty() ? "" : ", ") += part;
  return bad("one of " + names + ", or behind schedule one of its fields");
}

/// Remove and return the text before the separator.
std::string_view take_until(std::string_view& text, char separator) {
  const auto at = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return part;
}

}  // namespace

Result<std::vector<RowSpec>> parse_tables(std::string_view text) {
  std::vector<RowSpec> tables;
  while (!text.empty()) {
    std::string_view one = take_until(text, ';');
    RowSpec spec;
    spec.name = take_until(one, ':');
    bool is_in_schedule = false;
    while (!one.empty()) {
      const std::string_view part = take_until(one, ',');
      std::string_view value = part;
      const std::string_view key = take_until(value, '=');
      if (is_in_schedule && std::ranges::find(kParts, key) == kParts.end()) {
        spec.schedule.append(",").append(part);
        continue;
      }
      CENTROID_TRY(set_part(spec, key, value));
      is_in_schedule = key == "schedule";
    }
    CENTROID_TRY(spec.check());
    if (std::ranges::find(tables, spec.name, &RowSpec::name) != tables.end())
      return Error(ErrorCode::kInvalidArgument, "table '" + spec.name + "' is there twice");
    tables.push_back(std::move(spec));
  }
  return tables;
}

Result<RowInitializer> RowInitializer::parse(std::string_view text) {
  RowInitializer out;
  if (text == "zeros") return out;
  const auto colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  const std::string_view number = colon == text.npos ? "" : text.substr(colon + 1);
  const auto [end, failed] =
      std::from_chars(number.data(), number.data() + number.size(), out.scale);
  const bool is_number = failed == std::errc() && end == number.data() + number.size();
  const bool is_known = kind == "uniform" || kind == "normal";
  if (!is_known || !is_number || !(out.scale > 0 && out.scale <= 1000))
    return Error(ErrorCode::kInvalidArgument,
                 "initializer '" + std::string(text) +
                     "' is none of zeros, uniform:SCALE, normal:SCALE (0 < SCALE <= 1000)");
  out.kind = kind == "uniform" ? Kind::kUniform : Kind::kNormal;
  return out;
}

std::uint32_t RowSpec::slot_floats() const {
  switch (rule) {
    case RowRule::kSgd:
      return 0;
    case RowRule::kAdagrad:
      return 1;
    case RowRule::kFtrl:
      return 2 * dim;
  }
  return 0;
}

Status RowSpec::check() const {
  const auto refuse = [&](std::string_view field, const std::string& value,
                          std::string_view expected) {
    return Error(ErrorCode::kInvalidArgument, "table '" + name + "': " + std::string(field) +
                                                  " is " + value + ", it must be " +
                                                  std::string(expected));
  };
  if (!is_name(name))
    return refuse("name", "'" + name + "'", "1 to 64 letters, digits, '_', '-' or '.'");
  if (dim == 0 || dim > kMaxRowDim)
    return refuse("dim", std::to_string(dim), "from 1 to " + std::to_string(kMaxRowDim));
  if (!(learning_rate >= 1e-9 && learning_rate <= 1e6))
    return refuse("learning_rate", std::to_string(learning_rate), "from 1e-9 to 1e6");
  if (auto rates = LearningRateSchedule::parse(schedule); !rates.ok())
    return std::move(rates).error().with_context("table '" + name + "'");
  if (!(epsilon > 0 && epsilon <= 1))
    return refuse("epsilon", std::to_string(epsilon), "above 0, at most 1");
  for (const auto& [field, value] : {std::pair{"l1", l1}, std::pair{"l2", l2}})
    if (!(value >= 0 && value <= 1e6)) return refuse(field, std::to_string(value), "from 0 to 1e6");
  if (!(ftrl_beta > 0 && ftrl_beta <= 1e6))
    return refuse("ftrl_beta", std::to_string(ftrl_beta), "above 0, at most 1e6");
  if (admit_after == 0 || admit_after > 65'535)
    return refuse("admit_after", std::to_string(admit_after), "from 1 to 65535");
  if (max_age > 1u << 30)
    return refuse("max_age", std::to_string(max_age), "at most 1073741824 (0: for ever)");
  if (const std::uint64_t least = least_bytes(); max_bytes != 0 && max_bytes < least)
    return refuse("max_bytes", std::to_string(max_bytes),
                  "at least " + std::to_string(least) + " with this dim (0: no bound)");
  return {};
}

std::uint64_t RowSpec::least_bytes() const {
  // Room for eight slabs, and for one of candidates in their share.
  return std::max(8 * RecordMap::least_bytes(dim + slot_floats()),
                  kCandidateShare * RecordMap::least_bytes(0));
}

bool describes_same_rows(const RowSpec& one, const RowSpec& other) {
  return one.name == other.name && one.dim == other.dim && one.rule == other.rule &&
         one.initializer.kind == other.initializer.kind &&
         one.initializer.scale == other.initializer.scale && one.seed == other.seed;
}

std::string to_string(const RowSpec& spec) {
  const RowSpec plain;
  std::string out = spec.name + ":dim=" + std::to_string(spec.dim) +
                    ",optimizer=" + std::string(to_string(spec.rule));
  const auto real = [&](const char* before, double value, double usual) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    if (value != usual) out.append(",").append(before).append(digits, end);
  };
  const auto whole = [&](const char* key, std::uint64_t value, std::uint64_t usual) {
    if (value != usual) out.append(",").append(key).append("=").append(std::to_string(value));
  };
  real("lr=", spec.learning_rate, 0);
  if (spec.schedule != plain.schedule) out.append(",schedule=").append(spec.schedule);
  real("epsilon=", spec.epsilon, plain.epsilon);
  real("l1=", spec.l1, plain.l1);
  real("l2=", spec.l2, plain.l2);
  real("beta=", spec.ftrl_beta, plain.ftrl_beta);
  if (spec.initializer.kind == RowInitializer::Kind::kUniform)
    real("init=uniform:", spec.initializer.scale, 0);
  if (spec.initializer.kind == RowInitializer::Kind::kNormal)
    real("init=normal:", spec.initializer.scale, 0);
  whole("seed", spec.seed, plain.seed);
  whole("admit_after", spec.admit_after, plain.admit_after);
  whole("max_bytes", spec.max_bytes, plain.max_bytes);
  whole("max_age", spec.max_age, plain.max_age);
  return out;
}

Result<RowRule> parse_row_rule(std::string_view text) {
  if (text == "sgd") return RowRule::kSgd;
  if (text == "adagrad") return RowRule::kAdagrad;
  if (text == "ftrl") return RowRule::kFtrl;
  return Error(ErrorCode::kInvalidArgument,
               "optimizer '" + std::string(text) + "' of a table is none of sgd, adagrad, ftrl");
}

std::string_view to_string(RowRule rule) {
  switch (rule) {
    case RowRule::kSgd:
      return "sgd";
    case RowRule::kAdagrad:
      return "adagrad";
    case RowRule::kFtrl:
      return "ftrl";
  }
  return "?";
}

}  // namespace centroid::server
