#include "common/device/cuda/launch.h"
#include "common/optim/cuda/kernels.cuh"
#include "common/optim/cuda/kernels.h"

namespace centroid::cuda {
namespace {

std::uint64_t blocks_of(std::uint64_t n) {
  return (n + rules::kSquaresBlock - 1) / rules::kSquaresBlock;
}

template <class Rule>
void launch_update(const Rule& rule, const UpdateArguments& of, const Queue& queue) {
  const auto on_line = [](const float* array) { return address(array) % 16 == 0; };
  const bool is_wide =
      on_line(of.gradient) && on_line(of.params) && on_line(of.slots[0]) && on_line(of.slots[1]);
  const auto kernel = is_wide ? update_kernel<Rule, true> : update_kernel<Rule, false>;
  const std::uint64_t work = is_wide ? of.n / 4 + of.n % 4 : of.n;
  CENTROID_LAUNCH(kernel, blocks_for(work, queue.processors), kThreads, stream_of(queue), rule,
                  of.n, of.gradient, of.factor, of.params, of.slots[0], of.slots[1]);
}

}  // namespace

std::size_t clip_bytes(std::uint64_t n) { return sizeof(Clip) + blocks_of(n) * sizeof(double); }

Status clip(const float* gradient, std::uint64_t n, double bound, std::byte* memory,
            const Queue& queue) {
  auto* const out = reinterpret_cast<Clip*>(memory);
  auto* const sums = reinterpret_cast<double*>(memory + sizeof(Clip));
  const std::uint64_t blocks = blocks_of(n);
  if (blocks > 0) {
    const auto kernel = address(gradient) % 16 == 0 ? squares_kernel<true> : squares_kernel<false>;
    CENTROID_LAUNCH(kernel, blocks_for(blocks * kLanes, queue.processors), kThreads,
                    stream_of(queue), n, blocks, gradient, sums);
  }
  CENTROID_LAUNCH(clip_kernel, 1, kThreads, stream_of(queue), blocks, sums, bound, out);
  return launched("kernels of clip");
}

Status update(const UpdateArguments& arguments, const Queue& queue) {
  if (arguments.n == 0) return {};
  std::visit([&](const auto& rule) { launch_update(rule, arguments, queue); }, arguments.rule);
  return launched("kernel of update");
}

}  // namespace centroid::cuda
