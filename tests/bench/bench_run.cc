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

transport::Endpoint wait_for_endpoint(const fs::path& file, const Child& server) {
  const auto until = std::chrono::steady_clock::now() + kStartTimeout;
  while (!fs::exists(file)) {
    if (!server.is_alive() || std::chrono::steady_clock::now() > until)
      fail("centroid-server does not start");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // lint-ok: no test
  }
  const auto endpoints = nlohmann::json::parse(std::ifstream(file));
  auto endpoint = transport::Endpoint::parse(endpoints.at("data").get<std::string>());
  if (!endpoint.ok()) fail(endpoint.error().message());
  return *endpoint;
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
                           const fs::path& log_file) {
  const fs::path endpoints = folder / "endpoints.json";
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path() / "centroid-server";
  std::vector<std::string> command = {program, "--listen",         host + ":0",
                                      "--api", "127.0.0.1:0",      "--run-dir",
                                      folder,  "--endpoints-file", endpoints};
  command.insert(command.end(), flags.begin(), flags.end());
  if (!log_file.empty()) {
    const std::vector<std::string> shell{"/bin/sh", "-c", "exec \"$@\" 2>\"$0\"", log_file};
    command.insert(command.begin(), shell.begin(), shell.end());
  }
  ServerProcess server;
  server.child = Child::executed(command, network_namespace);
  server.data = wait_for_endpoint(endpoints, server.child);
  return server;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(q * static_cast<double>(values.size())))];
}

}  // namespace centroid::bench
