#include "common/base/config.h"

#include <cstdio>
#include <iterator>
#include <utility>
#include <variant>

#include "common/base/config_impl.h"
#include "common/base/version.h"

namespace centroid::config {
namespace {

using detail::flag_of;
using detail::Setting;
using detail::Value;

template <class T>
Value as_value(const T& value) {
  return Value(std::in_place_type<T>, value);
}

}  // namespace

Schema::Schema(std::string program, std::string summary) : impl_(std::make_unique<Impl>()) {
  impl_->program = std::move(program);
  impl_->summary = std::move(summary);
}

Schema::~Schema() = default;

template <class T, class Bound>
void Schema::Impl::add(const std::string& name, T* target, Doc<Bound> doc) {
  Setting setting;
  setting.name = name;
  setting.section = sections.empty() ? 0 : sections.size() - 1;
  setting.text = std::move(doc.text);
  setting.is_live = doc.live;
  setting.is_basic = doc.basic;
  setting.rule.initial = as_value(*target);
  setting.rule.unit = std::move(doc.unit);
  setting.rule.choices = std::move(doc.choices);
  setting.rule.is_secret = doc.secret;
  if constexpr (!std::is_same_v<T, std::string> && !std::is_same_v<T, bool>) {
    if (doc.min) setting.rule.min = as_value(T(*doc.min));
    if (doc.max) setting.rule.max = as_value(T(*doc.max));
  }
  if constexpr (std::is_same_v<T, std::chrono::milliseconds>) setting.rule.unit = "ms";
  setting.target = target;

  CENTROID_CHECK(!name.empty());
  const std::size_t index = settings.size();
  const std::string flag = flag_of(name);
  CENTROID_CHECK(!read_own_flag(flag));
  CENTROID_CHECK(flags.emplace(flag, index).second);
  CENTROID_CHECK(names.emplace(name, index).second);
  CENTROID_CHECK(variables.emplace(detail::environment_name(name), index).second);
  settings.push_back(std::move(setting));
}

void Schema::section(std::string title) { impl_->sections.push_back(std::move(title)); }

void Schema::field(const std::string& name, bool* target, Doc<bool> doc) {
  impl_->add(name, target, std::move(doc));
}
void Schema::field(const std::string& name, std::int64_t* target, Doc<std::int64_t> doc) {
  impl_->add(name, target, std::move(doc));
}
void Schema::field(const std::string& name, std::uint64_t* target, Doc<std::uint64_t> doc) {
  impl_->add(name, target, std::move(doc));
}
void Schema::field(const std::string& name, double* target, Doc<double> doc) {
  impl_->add(name, target, std::move(doc));
}
void Schema::field(const std::string& name, std::string* target, Doc<std::string> doc) {
  impl_->add(name, target, std::move(doc));
}
void Schema::field(const std::string& name, std::chrono::milliseconds* target,
                   Doc<std::int64_t> doc) {
  impl_->add(name, target, std::move(doc));
}

void Schema::ignore_environment(const std::string& prefix) { impl_->ignored.push_back(prefix); }

Status Schema::Impl::finish() {
  const auto found = std::exchange(problems, {});
  auto values = std::exchange(assignments, {});
  if (!found.empty()) {
    std::string message = found.front();
    if (found.size() > 1) {
      message = std::to_string(found.size()) + " problems:";
      for (const std::string& problem : found) message += "\n  " + problem;
    }
    return Error(ErrorCode::kInvalidArgument, std::move(message));
  }
  for (Assignment& assignment : values) {
    Setting& setting = settings[assignment.setting];
    std::visit([&]<class T>(T* target) { *target = std::get<T>(std::move(assignment.value)); },
               setting.target);
    setting.origin = assignment.origin;
    setting.source = std::move(assignment.source);
  }
  return {};
}

Result<Schema::Outcome> Schema::load(int argc, const char* const* argv) {
  std::optional<std::string> flag_path;
  std::optional<std::string> config_path;
  impl_->begin();
  impl_->read_flags(argc, argv, flag_path);
  if (impl_->shows_help || impl_->shows_version) {
    const std::string text =
        impl_->shows_help ? help(impl_->shows_all) : impl_->program + " " + kVersion + "\n";
    std::fputs(text.c_str(), stdout);
    return Outcome::kPrinted;
  }
  // Flags were read first (they name the file) but are applied last.
  auto from_flags = std::exchange(impl_->assignments, {});
  auto flag_problems = std::exchange(impl_->problems, {});
  impl_->read_environment(config_path);
  auto from_environment = std::exchange(impl_->assignments, {});
  auto environment_problems = std::exchange(impl_->problems, {});
  if (flag_path) config_path = flag_path;
  if (config_path) impl_->read_json_file(*config_path);
  const auto move_all = [](auto& from, auto& to) {
    std::move(from.begin(), from.end(), std::back_inserter(to));
  };
  move_all(from_environment, impl_->assignments);
  move_all(from_flags, impl_->assignments);
  move_all(environment_problems, impl_->problems);
  move_all(flag_problems, impl_->problems);
  CENTROID_TRY(impl_->finish());
  if (!impl_->prints_config) return Outcome::kRun;
  std::fputs((effective_json() + "\n").c_str(), stdout);
  return Outcome::kPrinted;
}

Status Schema::load_text(const std::string& json_text, const std::string& source_name) {
  impl_->begin();
  impl_->read_json(json_text, source_name);
  return impl_->finish();
}

Result<std::vector<Schema::Change>> Schema::change(const std::string& json_text,
                                                   const std::string& source_name,
                                                   const Check& check) {
  impl_->begin();
  impl_->read_json(json_text, source_name);
  std::vector<Impl::Assignment> before;
  std::vector<Change> changes;
  for (Impl::Assignment& requested : impl_->assignments) {
    const Setting& setting = impl_->settings[requested.setting];
    if (!setting.is_live)
      return Error(ErrorCode::kFailedPrecondition,
                   setting.name + " cannot be changed while the program runs: set it and restart");
    requested.origin = Origin::kRest;
    before.push_back({requested.setting, detail::current(setting), setting.origin, setting.source});
    Change change;
    change.name = setting.name;
    change.from = detail::to_text(setting.rule, before.back().value);
    change.to = detail::to_text(setting.rule, requested.value);
    changes.push_back(std::move(change));
  }
  CENTROID_TRY(impl_->finish());
  if (const Status checked = check(changes); !checked.ok()) {
    impl_->assignments = std::move(before);
    CENTROID_CHECK(impl_->finish().ok());
    return checked.error();
  }
  for (Impl::Assignment& old : before) {
    Setting& setting = impl_->settings[old.setting];
    if (!setting.configured)
      setting.configured = {std::move(old.value), old.origin, std::move(old.source)};
  }
  return changes;
}

std::vector<Schema::Live> Schema::live_changes() const {
  std::vector<Live> changes;
  for (const Setting& setting : impl_->settings) {
    if (!setting.configured) continue;
    Live one;
    one.name = setting.name;
    one.value = detail::json_text(setting.rule, detail::current(setting));
    one.configured = detail::json_text(setting.rule, setting.configured->value);
    if (one.value != one.configured) changes.push_back(std::move(one));
  }
  return changes;
}

std::string Schema::configured(const std::string& name) const {
  const auto found = impl_->names.find(name);
  if (found == impl_->names.end()) return {};
  const Setting& setting = impl_->settings[found->second];
  if (!setting.is_live) return {};
  return detail::json_text(
      setting.rule, setting.configured ? setting.configured->value : detail::current(setting));
}

void Schema::take_back_changes() {
  impl_->begin();
  for (std::size_t index = 0; index < impl_->settings.size(); ++index) {
    auto configured = std::exchange(impl_->settings[index].configured, std::nullopt);
    if (configured)
      impl_->assignments.push_back(
          {index, std::move(configured->value), configured->origin, std::move(configured->source)});
  }
  CENTROID_CHECK(impl_->finish().ok());
}

std::string Schema::effective_json() const { return detail::effective_json(impl_->settings); }

std::string Schema::help(bool is_all) const {
  return detail::help(impl_->program, impl_->summary, impl_->sections, impl_->settings, is_all);
}

}  // namespace centroid::config
