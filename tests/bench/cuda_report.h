#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/device/cuda/cuda_device.h"
#include "common/device/cuda/queue.h"
#include "common/device/device.h"

namespace centroid::bench {

/// What kernels took against bars: printed as it comes, and written as JSON.
class CudaReport {
 public:
  CudaReport(Device& device, std::uint64_t repetitions);

  /// Median milliseconds of `work` on the GPU's clock, which queues on `stream()`.
  double median(const std::function<Status()>& work);
  Stream& stream() { return *stream_; }
  cuda::Queue queue() { return cuda::queue_of(device_, *stream_); }
  /// `bytes`: that must be moved. `bar`: at most so many milliseconds; 0: none.
  void row(const std::string& what, double milliseconds, double bytes, double bar);
  /// A part that is to be at least so large.
  void part(const std::string& what, double value, double bar);
  int missed() const { return missed_; }
  /// With the command, the card, its driver and CUDA. fails  as the file system says
  Status write(const std::string& file, int argc, char** argv) const;

 private:
  struct Row {
    std::string what;
    double milliseconds, bytes, bar, part;
  };
  Device& device_;
  std::uint64_t repetitions_;
  std::unique_ptr<Stream> stream_;
  cuda::Event begin_, end_;
  std::vector<Row> rows_;
  int missed_ = 0;
};

/// The value, or the end of the program with the error.
template <class T>
T must(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.error().to_string().c_str());
    std::exit(1);
  }
  return std::move(result).value();
}
inline void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error().to_string().c_str());
  std::exit(1);
}

/// Every kernel of worker/model/cuda over the rows and widths of the models that torch_compare.py
/// trains, and over a vocabulary of 32,000. Bars: what must be moved, at 70 % of the bandwidth of a
/// copy (bytes a millisecond).
void measure_model_kernels(Device& device, CudaReport& report, double copy_bandwidth);

}  // namespace centroid::bench
