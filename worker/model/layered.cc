#include "worker/model/layered.h"

namespace centroid::worker {

void TensorPlaces::set(const Manifest& manifest, const float* flat_params, float* flat_gradients) {
  params.resize(manifest.size());
  gradients.resize(manifest.size());
  std::size_t position = 0;
  for (std::size_t t = 0; t < manifest.size(); ++t) {
    params[t] = flat_params + position;
    gradients[t] = flat_gradients == nullptr ? nullptr : flat_gradients + position;
    position += manifest[t].elements();
  }
}

}  // namespace centroid::worker
