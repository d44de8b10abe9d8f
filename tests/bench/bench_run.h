#pragma once

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/config.h"
#include "tests/bench/star_process.h"
#include "transport/transport.h"

/// What the benchmarks that run centroid-server have in common.
namespace centroid::bench {

/// A temporary folder that goes with its owner.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// centroid-server of the same build, as a user runs it.
struct ServerProcess {
  Child child;
  transport::Endpoint data, api;
};
/// `flags` beside where it listens (`host`), its run_dir and endpoints_file, which lie in `folder`.
/// With `log_file` its log goes there; with `tool` that command runs it. Ends the program when the
/// server does not start.
ServerProcess start_server(const std::filesystem::path& folder,
                           const std::vector<std::string>& flags,
                           const std::string& host = "127.0.0.1",
                           const std::string& network_namespace = "",
                           const std::filesystem::path& log_file = {},
                           const std::vector<std::string>& tool = {});

/// 0.5: the median.
double quantile(std::vector<double> values, double q);

/// main of a benchmark: read its options (`add_fields(schema, options)`), then `run(options)`.
template <class Options>
int bench_main(int argc, char** argv, const char* name, const char* about,
               void (*add_fields)(config::Schema&, Options&), int (*run)(const Options&)) {
  Options options;
  config::Schema schema(name, about);
  add_fields(schema, options);
  const auto outcome = schema.load(argc, argv);
  if (!outcome.ok()) {
    std::fprintf(stderr, "%s: %s\n", name, outcome.error().message().c_str());
    return 2;
  }
  return *outcome == config::Schema::Outcome::kPrinted ? 0 : run(options);
}

}  // namespace centroid::bench
