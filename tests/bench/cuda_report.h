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
  /// What a copy within the GPU's memory moves, reading and writing, in a millisecond: all rows
  /// from now on say what part of it they are, and those whose bar is below 70 % of it what 70 %
  /// would be.
  void use_copy(double bytes_a_millisecond) { copy_ = bytes_a_millisecond; }
  double copy() const { return copy_; }
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
    double milliseconds, bytes, bar, part, of_copy;
  };
  Device& device_;
  std::uint64_t repetitions_;
  std::unique_ptr<Stream> stream_;
  cuda::Event begin_, end_;
  double copy_ = 0;
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

/// The part of a copy's bandwidth that a kernel of one pass is to reach.
inline constexpr double kPartOfCopy = 0.7;

/// Every kernel of worker/model/cuda over the rows and widths of the models that torch_compare.py
/// trains, and over a vocabulary of 32,000. Bars: what must be moved, at kPartOfCopy of the copy
/// that the report knows.
void measure_model_kernels(Device& device, CudaReport& report);

}  // namespace centroid::bench
