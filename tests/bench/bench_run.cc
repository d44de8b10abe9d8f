#include "tests/bench/bench_run.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include <nlohmann/json.hpp>

namespace centroid::bench {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::seconds kStartTimeout{30};

/// Of the server, by name, as its endpoints_file has them.
transport::Endpoint endpoint_of(const nlohmann::json& endpoints, const char* name) {
  const auto text = endpoints.at(name).get<std::string>();
  const std::size_t scheme = text.find("://");
  auto endpoint =
      transport::Endpoint::parse(scheme == std::string::npos ? text : text.substr(scheme + 3));
  if (!endpoint.ok()) fail(endpoint.error().message());
  return *endpoint;
}

nlohmann::json wait_for_endpoints(const fs::path& file, const Child& server) {
  const auto until = std::chrono::steady_clock::now() + kStartTimeout;
  while (!fs::exists(file)) {
    if (!server.is_alive() || std::chrono::steady_clock::now() > until)
      fail("centroid-server does not start");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // lint-ok: no test
  }
  return nlohmann::json::parse(std::ifstream(file));
}

}  // namespace

Folder::Folder() {
  std::string name = (fs::temp_directory_path() / "centroid-bench-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) fail("cannot make a temporary folder");
  path_ = name;
}

Folder::~Folder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

ServerProcess start_server(const fs::path& folder, const std::vector<std::string>& flags,
                           const std::string& host, const std::string& network_namespace,
                           const fs::path& log_file, const std::vector<std::string>& tool) {
  const fs::path endpoints_file = folder / "endpoints.json";
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / "centroid-server";
  std::vector<std::string> command = {program,        "--listen",         host + ":0",
                                      "--api.listen", "127.0.0.1:0",      "--run-dir",
                                      folder,         "--endpoints-file", endpoints_file};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.begin(), tool.begin(), tool.end());
  if (!log_file.empty()) {
    const std::vector<std::string> shell{"/bin/sh", "-c", "exec \"$@\" 2>\"$0\"", log_file};
    command.insert(command.begin(), shell.begin(), shell.end());
  }
  ServerProcess server;
  server.child = Child::executed(command, network_namespace);
  const auto endpoints = wait_for_endpoints(endpoints_file, server.child);
  server.data = endpoint_of(endpoints, "data");
  server.api = endpoint_of(endpoints, "api");
  return server;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(q * static_cast<double>(values.size())))];
}

}  // namespace centroid::bench
