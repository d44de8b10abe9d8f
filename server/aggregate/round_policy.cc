#include "server/aggregate/round_policy.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "common/tensor/text.h"

namespace centroid::server {
namespace {

struct Field {
  std::string_view name;  ///< empty: the first item, which has no name
  bool is_needed = false;
  bool is_integer = false;
  double least = 0, most = 0;
  double value = 0;
  bool is_set = false;
};

std::string quoted(std::string_view text) {
  std::string out(1, '"');
  out += printable(text, 80);
  return out += '"';
}

Error bad(std::string_view setting, std::string_view text, const std::string& why) {
  return {ErrorCode::kInvalidArgument, std::string(setting) + " " + quoted(text) + ": " + why};
}

std::string number(double x) {
  std::string text = std::to_string(x);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

/// "NUMBER,name=NUMBER": the part after the colon.
Status parse_fields(std::string_view setting, std::string_view text, std::vector<Field>& fields) {
  const std::size_t colon = text.find(':');
  for (std::size_t at = colon; at != std::string_view::npos;) {
    const std::size_t next = text.find(',', at + 1);
    std::string_view item = text.substr(at + 1, next == text.npos ? next : next - at - 1);
    const std::size_t equals = item.find('=');
    const std::string_view name = equals == item.npos ? "" : item.substr(0, equals);
    const auto field = std::find_if(fields.begin(), fields.end(), [&](const Field& f) {
      return f.name == name && (!name.empty() || at == colon);
    });
    if (field == fields.end() || field->is_set)
      return bad(setting, text, quoted(item) + " is unknown or appears twice");
    item.remove_prefix(equals == item.npos ? 0 : equals + 1);
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), field->value);
    const bool is_number = error == std::errc{} && end == item.data() + item.size();
    if (!is_number || !(field->value >= field->least && field->value <= field->most) ||
        (field->is_integer && field->value != std::floor(field->value)))
      return bad(setting, text,
                 quoted(item) + " is not " + (field->is_integer ? "an integer" : "a number") +
                     " from " + number(field->least) + " to " + number(field->most));
    field->is_set = true;
    at = next;
  }
  for (const Field& field : fields)
    if (field.is_needed && !field.is_set) return bad(setting, text, "a number after : is missing");
  return {};
}

}  // namespace

Status parse_policy(std::string_view policy, std::string_view late, RoundPolicy& out) {
  constexpr double kMost = 4096, kRounds = 1e9;
  constexpr double kAspRounds = 32;  // with N equal workers a contribution is N - 1 rounds old
  const std::string_view name = policy.substr(0, policy.find(':'));
  std::vector<Field> fields;
  if (name == "bsp") {
    out.kind = PolicyKind::kBsp;
  } else if (name == "backup" || name == "quorum") {
    out.kind = name == "backup" ? PolicyKind::kBackup : PolicyKind::kQuorum;
    fields.push_back(
        {.name = "", .is_needed = true, .is_integer = true, .least = 1, .most = kMost});
    if (name == "quorum")
      fields.push_back({.name = "grace", .least = 0, .most = 100, .value = out.grace});
  } else if (name == "asp") {
    out.kind = PolicyKind::kAsp;
    fields.push_back(
        {.name = "max", .is_integer = true, .least = 1, .most = kRounds, .value = kAspRounds});
    fields.push_back({.name = "power", .least = 0, .most = 16, .value = out.power});
  } else if (name == "ssp") {
    out.kind = PolicyKind::kSsp;
    fields.push_back(
        {.name = "", .is_needed = true, .is_integer = true, .least = 0, .most = kMost});
  } else {
    return bad("policy", policy,
               "expected bsp, backup:B, quorum:K,grace=0.5, ssp:S or asp:max=32,power=0.5");
  }
  CENTROID_TRY(parse_fields("policy", policy, fields));
  if (out.applies_each()) {
    if (late != "drop")
      return bad("late", late,
                 "policy " + std::string(name) +
                     " itself decides about a contribution to a closed round: set it to drop");
    const bool is_damped = out.kind == PolicyKind::kAsp;
    out.late = is_damped ? LateRule::kDamp : LateRule::kCarry;
    out.count = is_damped ? 0 : static_cast<std::uint64_t>(fields[0].value);
    out.max_late = static_cast<std::uint64_t>(is_damped ? fields[0].value : kRounds);
    if (is_damped) out.power = fields[1].value;
    return {};
  }
  for (const Field& field : fields) {
    if (field.name.empty()) out.count = static_cast<std::uint64_t>(field.value);
    if (field.name == "grace") out.grace = field.value;
  }

  const std::string_view rule = late.substr(0, late.find(':'));
  std::vector<Field> more;
  if (rule == "drop") {
    out.late = LateRule::kDrop;
  } else if (rule == "carry" || rule == "damp") {
    out.late = rule == "carry" ? LateRule::kCarry : LateRule::kDamp;
    more.push_back({.name = "max",
                    .is_integer = true,
                    .least = 1,
                    .most = kRounds,
                    .value = static_cast<double>(out.max_late)});
    if (rule == "damp")
      more.push_back({.name = "power", .least = 0, .most = 16, .value = out.power});
  } else {
    return bad("late", late, "expected drop, carry:max=4 or damp:power=0.5,max=4");
  }
  CENTROID_TRY(parse_fields("late", late, more));
  if (!more.empty()) out.max_late = static_cast<std::uint64_t>(more[0].value);
  if (more.size() > 1) out.power = more[1].value;
  if (!out.is_elastic() && out.late != LateRule::kDrop)
    return bad("late", late, "with policy bsp nothing is late: leave it drop");
  return {};
}

}  // namespace centroid::server
