#include "worker/node/batch_staging.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>
#include <vector>

namespace centroid::worker {

namespace {

constexpr std::size_t kLine = 64;

std::size_t lines(std::size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// Offsets of y and tokens after x.
struct Layout {
  explicit Layout(const Batch& batch)
      : Layout(batch.x.size_bytes(), batch.y.size_bytes(), batch.tokens.size_bytes()) {}
  Layout(std::size_t of_x, std::size_t of_y, std::size_t of_tokens)
      : y(lines(of_x)), tokens(y + lines(of_y)), bytes(tokens + of_tokens) {}
  std::size_t y, tokens, bytes;
};

std::size_t bytes_of(const Model& model, std::uint64_t samples) {
  const std::size_t inputs = samples * model.features() * sizeof(float);
  const std::size_t targets = samples * model.targets() * sizeof(std::uint32_t);
  const bool has_tokens = model.vocabulary() > 0;
  return Layout(has_tokens ? 0 : inputs, targets, has_tokens ? inputs : 0).bytes;
}

}  // namespace

/// Lives as long as the last batch.
struct BatchStaging::Places {
  std::mutex mutex;
  std::vector<std::unique_ptr<DeviceMemory>> free;
  std::size_t made = 0, bytes = 0;

  void give_back(DeviceMemory* memory) noexcept {
    std::unique_ptr<DeviceMemory> back(memory);
    const std::lock_guard lock(mutex);
    if (back->size() >= bytes)
      free.push_back(std::move(back));  // its capacity was reserved
    else
      --made;
  }
};

BatchStaging::BatchStaging(Device& device)
    : device_(device),
      places_(std::make_shared<Places>()),
      host_(device, std::numeric_limits<std::size_t>::max()) {}

Status BatchStaging::make_room(std::size_t places, const Model& model, std::uint64_t samples,
                               std::uint64_t most_bytes) {
  const std::size_t bytes = bytes_of(model, samples);
  const std::lock_guard lock(mutex_);
  {
    const std::lock_guard also(places_->mutex);
    Places& all = *places_;
    all.bytes = std::max(all.bytes, bytes);
    all.made -=
        std::erase_if(all.free, [&](const auto& memory) { return memory->size() < all.bytes; });
    const std::size_t most = most_bytes / std::max<std::size_t>(all.bytes, 1);
    for (; all.made > most && !all.free.empty(); --all.made) all.free.pop_back();
    places = std::min(places, most);
  }
  if (places == 0) return {};
  if (!stream_) {
    CENTROID_ASSIGN(stream_, device_.make_stream());
  }
  if (!pinned_ || pinned_.size() < bytes) {
    try {
      pinned_ = host_.take(bytes);
    } catch (const std::bad_alloc&) {
      return Error(ErrorCode::kResourceExhausted,
                   "no memory for a batch of " + std::to_string(bytes) + " bytes");
    }
  }
  const std::lock_guard also(places_->mutex);
  Places& all = *places_;
  all.free.reserve(std::max(all.made, places));
  for (; all.made < places; ++all.made) {
    CENTROID_ASSIGN(auto memory, device_.allocate(all.bytes));
    all.free.push_back(std::move(memory));
  }
  return {};
}

Result<bool> BatchStaging::put(const Batch& batch, StagedBatch& into) {
  const std::lock_guard lock(mutex_);
  const Layout layout(batch);
  if (!pinned_ || pinned_.size() < layout.bytes) return false;
  if (!into.memory || into.memory->size() < layout.bytes) {
    into.memory.reset();
    std::unique_ptr<DeviceMemory> place;
    {
      const std::lock_guard also(places_->mutex);
      if (places_->free.empty() || places_->bytes < layout.bytes) return false;
      place = std::move(places_->free.back());
      places_->free.pop_back();
    }
    into.memory = std::shared_ptr<DeviceMemory>(
        place.release(), [home = places_](DeviceMemory* memory) { home->give_back(memory); });
  }
  std::byte* const from = pinned_.data();
  const auto gather = [from](std::size_t at, const auto& values) {
    if (!values.empty()) std::memcpy(from + at, values.data(), values.size_bytes());
  };
  gather(0, batch.x);
  gather(layout.y, batch.y);
  gather(layout.tokens, batch.tokens);
  CENTROID_TRY(stream_->copy(into.memory->data(), from, layout.bytes));
  CENTROID_TRY(stream_->wait());
  const std::byte* const at = into.memory->data();
  into.inputs.x = reinterpret_cast<const float*>(at);
  into.inputs.y = reinterpret_cast<const std::uint32_t*>(at + layout.y);
  into.inputs.tokens = reinterpret_cast<const std::uint32_t*>(at + layout.tokens);
  return true;
}

}  // namespace centroid::worker
