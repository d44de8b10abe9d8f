#include "tests/bench/cuda_report.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include <nlohmann/json.hpp>

#include "common/base/shared_library.h"
#include "common/base/version.h"
#include "tests/bench/cuda_passes.h"

namespace centroid::bench {

namespace {

/// As the driver's management library says it; "": it is not there.
std::string driver_version() {
  const std::vector<std::string> names{"libnvidia-ml.so.1"};
  auto library = SharedLibrary::open(names);
  if (!library.ok()) return "";
  int (*init)() = nullptr;
  int (*version)(char*, unsigned) = nullptr;
  library->find(init, "nvmlInit_v2");
  library->find(version, "nvmlSystemGetDriverVersion");
  char text[96] = {};
  if (init == nullptr || version == nullptr || init() != 0 || version(text, sizeof text) != 0)
    return "";
  library->keep();  // it may have threads
  return text;
}

}  // namespace

CudaReport::CudaReport(Device& device, std::uint64_t repetitions)
    : device_(device),
      repetitions_(repetitions),
      stream_(must(device.make_stream())),
      begin_(must(cuda::Event::make(0))),
      end_(must(cuda::Event::make(0))) {}

double CudaReport::median(const std::function<Status()>& work) {
  std::vector<double> times;
  for (std::uint64_t r = 0; r <= repetitions_; ++r) {
    must(begin_.record(*stream_));
    must(work());
    must(end_.record(*stream_));
    must(stream_->wait());
    if (r > 0) times.push_back(must(end_.milliseconds_since(begin_)));
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

void CudaReport::row(const std::string& what, double milliseconds, double bytes, double bar) {
  const bool is_missed = bar > 0 && milliseconds > bar;
  std::printf("%-44s %9.4f ms %9.1f GB/s", what.c_str(), milliseconds, bytes / milliseconds * 1e-6);
  const double of_copy = copy_ > 0 ? bytes / milliseconds / copy_ : 0;
  if (copy_ > 0) std::printf(" %4.0f %% of a copy", 100 * of_copy);
  if (bar > 0)
    std::printf("   %.2f of the bar %.4f ms%s", milliseconds / bar, bar,
                is_missed ? " MISSED" : "");
  const double good = copy_ > 0 ? bytes / (kPartOfCopy * copy_) : 0;
  if (good > 0 && (bar == 0 || bar > 1.001 * good))
    std::printf("   (%.0f %% of a copy: %.4f ms)", 100 * kPartOfCopy, good);
  std::printf("\n");
  std::fflush(stdout);
  rows_.push_back({what, milliseconds, bytes, bar, 0, of_copy});
  missed_ += is_missed ? 1 : 0;
}

void CudaReport::part(const std::string& what, double value, double bar) {
  const bool is_missed = value < bar;
  std::printf("%-44s %9.0f %%%s\n", what.c_str(), 100 * value, is_missed ? " MISSED" : "");
  rows_.push_back({what, 0, 0, bar, value, 0});
  missed_ += is_missed ? 1 : 0;
}

Status CudaReport::write(const std::string& file, int argc, char** argv) const {
  nlohmann::ordered_json out;
  out["command"] = std::vector<std::string>(argv, argv + argc);
  out["version"] = kVersion;
  const CudaFacts facts = cuda_facts();
  out["card"] = facts.name;
  out["compute_capability"] = facts.capability;
  out["memory_bytes"] = facts.memory_bytes;
  out["driver"] = driver_version();
  out["driver_cuda"] = facts.driver_cuda;
  out["runtime_cuda"] = cuda_release();
  out["repetitions"] = repetitions_;
  auto rows = nlohmann::ordered_json::array();
  for (const Row& row : rows_) {
    nlohmann::ordered_json one;
    one["what"] = row.what;
    if (row.milliseconds > 0) {
      one["milliseconds"] = row.milliseconds;
      one["bytes"] = row.bytes;
      if (row.of_copy > 0) one["of_copy"] = row.of_copy;
      if (row.bar > 0) one["bar_milliseconds"] = row.bar;
    } else {
      one["part"] = row.part;
      one["bar_part"] = row.bar;
    }
    rows.push_back(std::move(one));
  }
  out["rows"] = std::move(rows);
  out["missed"] = missed_;
  std::ofstream to(file);
  to << out.dump(2) << '\n';
  to.close();
  if (to) return {};
  return Error(ErrorCode::kFailedPrecondition,
               "cannot write " + file + ": is its folder there, and may it be written?");
}

}  // namespace centroid::bench
