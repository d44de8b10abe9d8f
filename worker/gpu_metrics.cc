#include "worker/gpu_metrics.h"

#include <algorithm>
#include <vector>

#include "common/base/log.h"
#include "common/base/shared_library.h"
#include "common/base/trace_events.h"

namespace centroid::worker {
namespace {

constexpr unsigned kMaxGpus = 64;

// From nvml.h, whose interface is stable: device handles are opaque, 0 means success.
using Device = void*;
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;  // percent of the last sample period
};

/// The functions that are used, loaded from the library.
struct Nvml {
  int (*init)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, Device*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*temperature)(Device, int, unsigned*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;

  /// False when one of them is missing.
  bool load(SharedLibrary& library) {
    library.find(init, "nvmlInit_v2");
    library.find(count, "nvmlDeviceGetCount_v2");
    library.find(handle, "nvmlDeviceGetHandleByIndex_v2");
    library.find(memory, "nvmlDeviceGetMemoryInfo");
    library.find(utilization, "nvmlDeviceGetUtilizationRates");
    library.find(temperature, "nvmlDeviceGetTemperature");
    library.find(power, "nvmlDeviceGetPowerUsage");
    return library.missing().empty();
  }
};

struct Gpu {
  Device device;
  metrics::Gauge used, total, busy, temperature, power;
  std::string name;  // of its trace tracks
};

}  // namespace

std::size_t add_gpus(metrics::Registry& registry, const std::string& library) {
  auto opened = SharedLibrary::open({&library, 1});
  if (!opened.ok()) return 0;
  Nvml nvml;
  unsigned count = 0;
  const bool is_complete = nvml.load(*opened);
  opened->keep();  // a driver's library may have threads
  if (!is_complete || nvml.init() != 0 || nvml.count(&count) != 0) {
    log::warn("gpu.measurement_failed", {{"library", library}});
    return 0;
  }
  std::vector<Gpu> gpus;
  for (unsigned i = 0; i < std::min(count, kMaxGpus); ++i) {
    Gpu gpu{};
    if (nvml.handle(i, &gpu.device) != 0) continue;
    const metrics::Labels labels{{"gpu", std::to_string(i)}};
    gpu.name = std::string("gpu ").append(std::to_string(i));
    gpu.used = registry.gauge("centroid_worker_gpu_memory_used_bytes",
                              "Memory in use on the GPU, by all its processes.", labels);
    gpu.total =
        registry.gauge("centroid_worker_gpu_memory_total_bytes", "Memory of the GPU.", labels);
    gpu.busy = registry.gauge("centroid_worker_gpu_utilization_ratio",
                              "Share of the last moment in which the GPU ran something.", labels);
    gpu.temperature = registry.gauge("centroid_worker_gpu_temperature_celsius",
                                     "Temperature of the GPU.", labels);
    gpu.power =
        registry.gauge("centroid_worker_gpu_power_watts", "Power that the GPU draws.", labels);
    gpus.push_back(gpu);
  }
  trace::add_source([nvml, gpus](const trace::RecordSample& record) {
    for (const Gpu& gpu : gpus) {
      if (Utilization now{}; nvml.utilization(gpu.device, &now) == 0)
        record(gpu.name + " utilization", "ratio", now.gpu / 100.0);
      if (Memory memory{}; nvml.memory(gpu.device, &memory) == 0)
        record(gpu.name + " memory", "used_bytes", static_cast<double>(memory.used));
    }
  });
  registry.on_collect([nvml, gpus] {
    for (const Gpu& gpu : gpus) {
      if (Memory memory{}; nvml.memory(gpu.device, &memory) == 0) {
        gpu.used.set(static_cast<double>(memory.used));
        gpu.total.set(static_cast<double>(memory.total));
      }
      if (Utilization now{}; nvml.utilization(gpu.device, &now) == 0) gpu.busy.set(now.gpu / 100.0);
      if (unsigned degrees = 0; nvml.temperature(gpu.device, 0, &degrees) == 0)
        gpu.temperature.set(degrees);
      if (unsigned milliwatts = 0; nvml.power(gpu.device, &milliwatts) == 0)
        gpu.power.set(milliwatts / 1000.0);
    }
  });
  return gpus.size();
}

}  // namespace centroid::worker
