#include "server/store/past_steps.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "common/base/thread.h"
#include "common/optim/norm.h"
#include "common/storage/file.h"

namespace centroid::server {
namespace {

/// A block's parameters, slots and gradient fit in 1 MiB of cache.
constexpr std::uint64_t kBlockElements = 64 * 1024;
/// More would only wait for memory.
constexpr unsigned kMostThreads = 4;

using Work = std::function<Status(const Chunk&, std::span<float> block)>;

/// `work` for every chunk, each with memory for a block.
Status for_chunks(const ChunkPlan& plan, const Work& work, const std::function<void()>& meanwhile) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  Status outcome;
  const auto run = [&] {
    std::vector<float> block(kBlockElements);
    for (std::size_t i = next++; i < plan.chunks().size(); i = next++) {
      Status done = work(plan.chunks()[i], block);
      if (done.ok()) continue;
      const std::lock_guard lock(mutex);
      outcome = std::move(done);
      return;
    }
  };
  storage::Storage& storage = storage::current();
  std::vector<Thread> others;
  for (unsigned i = 1; i < std::min(core_count(), kMostThreads); ++i)
    others.emplace_back("replay", [&run, &storage] {
      const storage::ScopedStorage own(storage);
      run();
    });
  meanwhile();
  run();
  others.clear();
  return outcome;
}

/// The blocks of a chunk.
template <class Each>
Status for_blocks(const Chunk& chunk, Each each) {
  for (std::uint64_t done = 0; done < chunk.elements; done += kBlockElements) {
    Chunk block = chunk;
    block.position += done;
    block.offset += done;
    block.elements = std::min(kBlockElements, chunk.elements - done);
    CENTROID_TRY(each(block, done * sizeof(float)));
  }
  return {};
}

/// Numbers of a block as in the journal; a sum as the mean.
Status read_numbers(const ParameterStore& store, const PastRound& round, const Chunk& block,
                    std::uint64_t skip_bytes, std::span<float> into) {
  const std::uint64_t at = round.at[block.id.value];
  if (at == PastRound::kInSpare)
    std::ranges::copy(store.spare(block), into.begin());
  else
    CENTROID_TRY(file::read_at(round.segment->file, round.segment->path, at + skip_bytes,
                               std::as_writable_bytes(into)));
  if (round.form != journal::Form::kSum) return {};
  const float factor = mean_factor(round.commit.weight);
  for (float& x : into) x *= factor;
  return {};
}

}  // namespace

Status step_again(ParameterStore& store, std::span<const PastStep> steps,
                  const std::function<void()>& meanwhile) {
  const auto work = [&](const Chunk& chunk, std::span<float> memory) {
    const auto changes = [&](const PastStep& step) {
      return step.round->at[chunk.id.value] != PastRound::kNotChanged;
    };
    std::vector<PastStep> mine;
    std::ranges::copy_if(steps, std::back_inserter(mine), changes);
    // For parameters, the last ones count.
    if (!mine.empty() && mine.back().round->form == journal::Form::kParameters)
      mine.erase(mine.begin(), mine.end() - 1);
    return for_blocks(chunk, [&](const Chunk& block, std::uint64_t skip_bytes) -> Status {
      const std::span<float> numbers = memory.first(static_cast<std::size_t>(block.elements));
      for (const PastStep& step : mine) {
        CENTROID_TRY(read_numbers(store, *step.round, block, skip_bytes, numbers));
        if (step.round->form == journal::Form::kParameters)
          CENTROID_TRY(store.load(0, block.position, numbers));
        else
          store.step_again(block, step.rule, step.gradient_factor, numbers);
      }
      return {};
    });
  };
  return for_chunks(store.plan(), work, meanwhile);
}

Result<std::vector<std::vector<double>>> squares_again(const ParameterStore& store,
                                                       std::span<const PastStep> steps) {
  std::vector<std::vector<double>> squares(steps.size(),
                                           std::vector<double>(store.plan().chunks().size()));
  const auto work = [&](const Chunk& chunk, std::span<float> memory) -> Status {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const PastRound& round = *steps[i].round;
      if (store.plan().is_buffer(chunk) || round.at[chunk.id.value] == PastRound::kNotChanged)
        continue;
      PlaneNorm norm;
      const auto add = [&](const Chunk& block, std::uint64_t skip_bytes) -> Status {
        const std::span<float> numbers = memory.first(static_cast<std::size_t>(block.elements));
        CENTROID_TRY(read_numbers(store, round, block, skip_bytes, numbers));
        norm.add(block.position, numbers);
        return {};
      };
      CENTROID_TRY(for_blocks(chunk, add));
      squares[i][chunk.id.value] = norm.end_chunk();
    }
    return {};
  };
  CENTROID_TRY(for_chunks(store.plan(), work, [] {}));
  return squares;
}

Status load_spare(ParameterStore& store, const PastRound& round) {
  for (const Chunk& chunk : store.plan().chunks()) {
    const std::uint64_t at = round.at[chunk.id.value];
    if (at == PastRound::kNotChanged || at == PastRound::kInSpare) continue;
    CENTROID_TRY(file::read_at(round.segment->file, round.segment->path, at,
                               std::as_writable_bytes(store.spare(chunk))));
  }
  return {};
}

}  // namespace centroid::server
