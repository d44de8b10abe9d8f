#pragma once

#include <span>

#include "common/tensor/buffer.h"
#include "common/tensor/fragments.h"
#include "worker/exchange/exchange.h"

namespace centroid::worker {

/// How far own parameters, as they were contributed, are from the new ones.
struct Divergence {
  double ratio = -1;  ///< |own - new| / |new|; -1: nothing was contributed, or `new` is 0; what is
                      ///< not finite counts as 1e300
  double cosine = 1;  ///< of the angle between them, by the three norms
  double shift = 0;   ///< |own| - |new|
};

/// The memory of rounds of local steps (docs/how-to/diloco.md): own parameters beside the
/// cluster's, and what they differ by, whoever trains them.
///
/// sign     contribution = the cluster's - own: a gradient to the cluster's optimizer
/// after    own = the cluster's + (own - own when contributed), for the fragment whose turn it was
/// memory   own parameters and contribution; with fragments or keep_sent a copy of what was sent
/// thread   one
class LocalPlanes {
 public:
  /// `params`: the cluster's, as many as the plan has; `own`: memory of as many bytes. Throws
  /// std::bad_alloc.
  /// fails  as FragmentPlan
  Status open(const ChunkPlan& plan, std::uint32_t fragments, std::span<float> params, Buffer own);
  /// The cluster's parameters are elsewhere from now on.
  void move_params(std::span<float> params) { global_ = params; }

  std::span<float> own() const { return own_; }
  std::span<const float> contribution() const { return delta_; }
  std::span<const TensorId> tensors(const Share& share) const {
    return fragments_[share.fragment].tensors;
  }

  /// What is contributed will still be known after more steps.
  /// fails  resource_exhausted
  Status keep_sent();
  /// All own parameters are the cluster's.
  void restart();
  void contribute(const Share& share);
  /// After a committed round whose contribution went along. Without a copy of it: as restart.
  void merge(const Share& share);
  Divergence divergence(const Share& share) const;
  /// What was contributed is still known after more steps.
  bool keeps_sent() const { return !sent_.empty(); }

 private:
  std::span<float> part(std::span<float> plane, TensorId tensor) const;

  ChunkPlan plan_;
  FragmentPlan fragments_;
  std::span<float> global_;
  Buffer own_memory_, delta_memory_, sent_memory_;
  std::span<float> own_, delta_, sent_;
};

}  // namespace centroid::worker
