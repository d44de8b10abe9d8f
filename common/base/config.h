#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace centroid::config {

/// Description of a field.
template <class T>
struct Doc {
  std::string text;       ///< one sentence
  std::string unit = {};  ///< "ms", "bytes", "samples"; empty when it has none
  std::optional<T> min = {};
  std::optional<T> max = {};
  std::vector<std::string> choices = {};  ///< for strings
  bool secret = false;                    ///< printed as "***" (tokens)
  bool live = false;                      ///< may be changed while running
  bool basic = false;                     ///< `--help` lists it, not only `--help-all`
};

/// Source of an effective value.
enum class Origin : std::uint8_t { kDefault, kFile, kEnvironment, kFlag, kRest };

/// Fields of one process bound to struct members. A field has one name, a path such as
/// "checkpoint.every_rounds". In JSON that is a key or nested objects, on the command line
/// `--checkpoint.every-rounds 5`, in the environment CENTROID_CHECKPOINT_EVERY_ROUNDS.
/// Order: default < `--config FILE` (or CENTROID_CONFIG) < environment < flags.
///
/// units   a field in ms takes 250, "250ms", "30s", "5m", "1h"; one in bytes takes 4096, "64KiB",
///         "1MiB", "2GB"
/// secrets `<name>_file` (key, flag or variable) names a file with the value
/// flags   `--name value`, `--name=value`; `--flag` and `--no-flag` for bool
/// fails   aborts when two fields share a name or a variable
class Schema {
 public:
  Schema(std::string program, std::string summary);
  ~Schema();
  Schema(const Schema&) = delete;
  Schema& operator=(const Schema&) = delete;

  /// The title in `--help` of the fields that follow.
  void section(std::string title);

  void field(const std::string& name, bool* target, Doc<bool> doc);
  void field(const std::string& name, std::int64_t* target, Doc<std::int64_t> doc);
  void field(const std::string& name, std::uint64_t* target, Doc<std::uint64_t> doc);
  void field(const std::string& name, double* target, Doc<double> doc);
  void field(const std::string& name, std::string* target, Doc<std::string> doc);
  void field(const std::string& name, std::chrono::milliseconds* target, Doc<std::int64_t> doc);

  /// Ignore environment variables with this prefix ("CENTROID_TEST_"). Any other unknown CENTROID_*
  /// is an error.
  void ignore_environment(const std::string& prefix);

  enum class Outcome : std::uint8_t {
    kRun,      ///< continue
    kPrinted,  ///< --help, --version, --print-config were answered on stdout: exit 0
  };
  /// Read all sources.
  /// fails  invalid_argument: names key, value, source (file:line if known), bounds, and for an
  ///        unknown key the nearest known one; lists every problem, not only the first.
  Result<Outcome> load(int argc, const char* const* argv);
  /// The same from a JSON text alone, without argv and environment; origin is the file. Nothing
  /// changes when it fails.
  Status load_text(const std::string& json_text, const std::string& source_name);

  /// A field that `change` set to another value; values as text.
  struct Change {
    std::string name, from, to;
  };
  using Check = std::function<Status(const std::vector<Change>&)>;
  /// Change live fields, from a JSON object as in a file. All of them or none: `check` sees the new
  /// values in their targets, and its error reverts them. Origin is kRest.
  /// fails invalid_argument (as `load_text`); failed_precondition: a field that is not live; the
  /// error of `check`
  Result<std::vector<Change>> change(const std::string& json_text, const std::string& source_name,
                                     const Check& check);

  /// A field that `change` set to another value than the configured one; as JSON.
  struct Live {
    std::string name, value, configured;
  };
  std::vector<Live> live_changes() const;
  /// The value of a live field from file, environment and flags, as JSON; empty: no such field.
  std::string configured(const std::string& name) const;
  /// Reset every field to its configured value and origin.
  void take_back_changes();

  /// Effective values as a JSON object of {name: {value, default, origin, unit, text, min, max}};
  /// secrets hidden.
  std::string effective_json() const;
  /// The text of `--help`, or of `--help-all` with `is_all`. Without basic fields both list all.
  std::string help(bool is_all = true) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace centroid::config
