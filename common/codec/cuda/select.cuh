#pragma once

// Top-k by histograms of the keys' 31 bits: 11, 10 and 10 of them. Only the addition and one more
// pass see all numbers; the other steps see those at or above the first histogram's bin.
//
// source  Alabi et al. 2012, "Fast k-selection algorithms for graphics processing units" (radix
// select)

#include "common/codec/cuda/grid.cuh"
#include "common/codec/cuda/kernels.h"
#include "common/codec/momentum.h"

namespace centroid::cuda {

constexpr unsigned kFirstShift = 20, kSecondShift = 10;
constexpr std::uint32_t kFirstBins = 2048, kBins = 1024;
/// A tile is the part whose masks a block computes at a time: a word of 32 numbers per thread.
constexpr unsigned kTileWords = kThreads;
constexpr std::uint64_t kTile = std::uint64_t{kTileWords} * 32;

struct SelectState {
  std::uint32_t first[kFirstBins], second[kBins], third[kBins];
  Wide nonfinite, first_nonfinite;
  std::uint32_t k;       // number to select
  std::uint32_t left;    // number to select from the last bin
  std::uint32_t prefix;  // of the k-th key; finally the whole key
};

struct SelectMemory {
  SelectState* state;
  std::uint32_t* above;  // bit i % 32 of word i / 32: reaches the bin; later: exceeds the key
  std::uint32_t* equal;  // the number has the key
  Wide* tiles;           // counts above << 32 | equal: of the tile; later: of all tiles before it
};

constexpr std::uint64_t tiles_of(std::uint64_t n) { return (n + kTile - 1) / kTile; }
constexpr std::size_t kStateBytes = (sizeof(SelectState) + 15) / 16 * 16;

inline std::size_t select_memory_bytes(std::uint64_t n) {
  const std::uint64_t tiles = tiles_of(n);
  return kStateBytes + tiles * (sizeof(Wide) + 2 * kTileWords * sizeof(std::uint32_t));
}

inline SelectMemory select_memory(std::byte* memory, std::uint64_t n) {
  const std::uint64_t tiles = tiles_of(n);
  auto* words = reinterpret_cast<std::uint32_t*>(memory + kStateBytes);
  auto* counts = reinterpret_cast<Wide*>(words + 2 * tiles * kTileWords);
  return {reinterpret_cast<SelectState*>(memory), words, words + tiles * kTileWords, counts};
}

/// Numbers before the first 16-byte boundary; all if the arrays have different alignment.
inline std::uint64_t lead_of(const AddArguments& add, std::uint64_t n) {
  const std::uint64_t past = address(add.x) % 16;
  if (add.gradient != nullptr && address(add.gradient) % 16 != past) return n;
  if (add.momentum != nullptr && address(add.momentum) % 16 != past) return n;
  const std::uint64_t lead = (16 - past) % 16 / sizeof(float);
  return lead < n ? lead : n;
}

/// A histogram of the block, in shared memory: all threads clear it together, and finally add it to
/// the histogram of all blocks.
template <std::uint32_t kCount>
__device__ __forceinline__ void begin_bins(std::uint32_t (&bins)[kCount]) {
  for (std::uint32_t b = threadIdx.x; b < kCount; b += kThreads) bins[b] = 0;
  __syncthreads();
}
template <std::uint32_t kCount>
__device__ __forceinline__ void end_bins(const std::uint32_t (&bins)[kCount],
                                         std::uint32_t (&total)[kCount]) {
  __syncthreads();
  for (std::uint32_t b = threadIdx.x; b < kCount; b += kThreads)
    if (bins[b] > 0) atomicAdd(&total[b], bins[b]);
}

template <class = void>
__global__ void __launch_bounds__(kThreads) begin_kernel(SelectState* state) {
  const auto i = static_cast<std::uint32_t>(thread_number());
  if (i < kFirstBins) state->first[i] = 0;
  if (i < kBins) state->second[i] = state->third[i] = 0;
  if (i == 0) {
    state->nonfinite = 0;
    state->first_nonfinite = ~Wide{0};
    state->k = state->left = state->prefix = 0;
  }
}

/// State of a thread of `add_kernel`.
struct AddState {
  BinCounter counter;
  Wide nonfinite = 0, first_nonfinite = ~Wide{0};
};

/// The sum of one number.
template <bool kAdd, bool kMomentum>
__device__ __forceinline__ float add_one(const AddArguments& a, std::uint64_t i, float x, float g,
                                         float& u, std::uint32_t* bins, AddState& state) {
  float sum = x;
  if constexpr (kAdd) {
    float gained = g;
    if constexpr (kMomentum) {
      const MomentumStep step = momentum_step(g, u, a.factor, a.nesterov);
      gained = step.gained;
      u = step.momentum;
    }
    sum = x + gained;
    if (topk::key_of(sum) >= topk::kInfinity) {
      ++state.nonfinite;
      if (i < state.first_nonfinite) state.first_nonfinite = i;
      if (!a.store_nonfinite) return x;
      // x is finite, so a NaN comes from g; the CPU preserves its bits, a GPU does not.
      if (topk::key_of(sum) > topk::kInfinity)
        sum = std::bit_cast<float>(std::bit_cast<std::uint32_t>(g) | 0x400000u);
      return sum;
    }
  }
  const std::uint32_t key = topk::key_of(sum);
  if (key != 0) state.counter.add(bins, key >> kFirstShift);
  return sum;
}

/// The addition and the first histogram. The first `lead` numbers and those after the last complete
/// four are processed one by one.
template <bool kAdd, bool kMomentum>
__global__ void __launch_bounds__(kThreads)
    add_kernel(AddArguments a, std::uint64_t n, std::uint64_t lead, SelectState* out) {
  __shared__ std::uint32_t bins[kFirstBins];
  begin_bins(bins);
  AddState state;
  const std::uint64_t fours = (n - lead) / 4, singles = n - 4 * fours;
  for (std::uint64_t q = thread_number(); q < fours; q += thread_count()) {
    const std::uint64_t i = lead + 4 * q;
    auto* at = reinterpret_cast<float4*>(a.x + i);
    float4 x = *at, g{}, u{};
    if constexpr (kAdd) g = *reinterpret_cast<const float4*>(a.gradient + i);
    if constexpr (kMomentum) u = *reinterpret_cast<const float4*>(a.momentum + i);
    x.x = add_one<kAdd, kMomentum>(a, i, x.x, g.x, u.x, bins, state);
    x.y = add_one<kAdd, kMomentum>(a, i + 1, x.y, g.y, u.y, bins, state);
    x.z = add_one<kAdd, kMomentum>(a, i + 2, x.z, g.z, u.z, bins, state);
    x.w = add_one<kAdd, kMomentum>(a, i + 3, x.w, g.w, u.w, bins, state);
    if constexpr (kAdd) *at = x;
    if constexpr (kMomentum) *reinterpret_cast<float4*>(a.momentum + i) = u;
  }
  for (std::uint64_t s = thread_number(); s < singles; s += thread_count()) {
    const std::uint64_t i = s < lead ? s : s + 4 * fours;
    float g = 0, u = 0;
    if constexpr (kAdd) g = a.gradient[i];
    if constexpr (kMomentum) u = a.momentum[i];
    const float sum = add_one<kAdd, kMomentum>(a, i, a.x[i], g, u, bins, state);
    if constexpr (kAdd) a.x[i] = sum;
    if constexpr (kMomentum) a.momentum[i] = u;
  }
  state.counter.flush(bins);
  if (state.nonfinite > 0) {
    atomicAdd(&out->nonfinite, state.nonfinite);
    atomicMin(&out->first_nonfinite, state.first_nonfinite);
  }
  end_bins(bins, out->first);
}

/// Find the bin of the k-th key: one block.
template <int kLevel>
__global__ void __launch_bounds__(kThreads) pick_kernel(SelectState* state, std::uint64_t needed) {
  constexpr std::uint32_t kEach = (kLevel == 0 ? kFirstBins : kBins) / kThreads;
  const std::uint32_t* bins = kLevel == 0   ? state->first
                              : kLevel == 1 ? state->second
                                            : state->third;
  std::uint32_t k = state->left;
  const std::uint32_t top = kEach * (kThreads - threadIdx.x);  // of this thread's bins, exclusive
  std::uint32_t mine = 0, total = 0;
  for (std::uint32_t b = top - kEach; b < top; ++b) mine += bins[b];
  std::uint32_t above = block_sum_before(mine, total);  // its barrier: all threads have read `left`
  if constexpr (kLevel == 0) {
    k = needed < total ? static_cast<std::uint32_t>(needed) : total;
    if (state->nonfinite > 0) k = 0;
    if (threadIdx.x == 0) state->k = k;
  }
  if (above >= k || mine < k - above) return;  // the k-th key is another thread's
  std::uint32_t b = top - 1;
  for (; bins[b] < k - above; --b) above += bins[b];
  state->prefix = kLevel == 0 ? b : state->prefix << kSecondShift | b;
  state->left = k - above;
}

/// Masks of the numbers that reach the first bin, and the second histogram.
template <class = void>
__global__ void __launch_bounds__(kThreads)
    mark_kernel(const float* x, std::uint64_t n, SelectMemory memory) {
  constexpr unsigned kAtOnce = 8;  // loads in flight per thread
  __shared__ std::uint32_t bins[kBins];
  if (memory.state->k == 0) return;
  begin_bins(bins);
  const std::uint32_t prefix = memory.state->prefix;
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t words = tiles_of(n) * kTileWords, step = thread_count();
  BinCounter counter;
  for (std::uint64_t first = thread_number() - lane; first < words; first += step) {
    std::uint32_t mine = 0;
    for (unsigned j = 0; j < kLanes; j += kAtOnce) {
      std::uint32_t keys[kAtOnce];
      for (unsigned l = 0; l < kAtOnce; ++l) {
        const std::uint64_t i = (first + j + l) * 32 + lane;
        keys[l] = i < n ? topk::key_of(x[i]) : 0;
      }
      for (unsigned l = 0; l < kAtOnce; ++l) {
        const std::uint32_t bin = keys[l] >> kFirstShift;
        const std::uint32_t word = __ballot_sync(kAllLanes, keys[l] != 0 && bin >= prefix);
        if (lane == j + l) mine = word;
        if (keys[l] != 0 && bin == prefix) counter.add(bins, keys[l] >> kSecondShift & (kBins - 1));
      }
    }
    memory.above[first + lane] = mine;
  }
  counter.flush(bins);
  end_bins(bins, memory.state->second);
}

/// The third histogram, of the marked numbers.
template <class = void>
__global__ void __launch_bounds__(kThreads)
    refine_kernel(const float* x, std::uint64_t n, SelectMemory memory) {
  __shared__ std::uint32_t bins[kBins];
  if (memory.state->k == 0) return;
  begin_bins(bins);
  const std::uint32_t prefix = memory.state->prefix;
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t words = tiles_of(n) * kTileWords, step = thread_count();
  BinCounter counter;
  for (std::uint64_t first = thread_number() - lane; first < words; first += step) {
    const std::uint32_t mine = memory.above[first + lane];
    for (unsigned j = 0; j < kLanes; ++j) {
      const std::uint32_t word = __shfl_sync(kAllLanes, mine, j);
      if ((word >> lane & 1) == 0) continue;
      const std::uint32_t key = topk::key_of(x[(first + j) * 32 + lane]);
      if (key >> kSecondShift == prefix) counter.add(bins, key & (kBins - 1));
    }
  }
  counter.flush(bins);
  end_bins(bins, memory.state->third);
}

/// With the key known: masks of the numbers above and equal to it, and their counts per tile.
template <class = void>
__global__ void __launch_bounds__(kThreads)
    split_kernel(const float* x, std::uint64_t n, SelectMemory memory) {
  if (memory.state->k == 0) return;
  const std::uint32_t key = memory.state->prefix;
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t tiles = tiles_of(n);
  for (std::uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::uint64_t first = tile * kTileWords + threadIdx.x - lane;
    const std::uint32_t marked = memory.above[first + lane];
    std::uint32_t above = 0, equal = 0;
    for (unsigned j = 0; j < kLanes; ++j) {
      const std::uint32_t word = __shfl_sync(kAllLanes, marked, j);
      if (word == 0) continue;
      const std::uint32_t mine =
          (word >> lane & 1) != 0 ? topk::key_of(x[(first + j) * 32 + lane]) : 0;
      const std::uint32_t greater = __ballot_sync(kAllLanes, mine > key);
      const std::uint32_t same = __ballot_sync(kAllLanes, mine == key);  // key is not 0
      if (lane == j) {
        above = greater;
        equal = same;
      }
    }
    memory.above[first + lane] = above;
    memory.equal[first + lane] = equal;
    Wide total = 0;
    block_sum_before(static_cast<Wide>(__popc(above)) << 32 | static_cast<Wide>(__popc(equal)),
                     total);
    if (threadIdx.x == 0) memory.tiles[tile] = total;
  }
}

/// Replace the tiles' counts by the sums over all tiles before, and write the summary. One block.
template <class = void>
__global__ void __launch_bounds__(kThreads)
    offsets_kernel(std::uint64_t tiles, SelectMemory memory, SelectSummary* summary) {
  constexpr unsigned kEach = 4;
  if (threadIdx.x == 0) {
    summary->count = memory.state->k;
    summary->nonfinite = memory.state->nonfinite;
    summary->first_nonfinite = memory.state->nonfinite > 0 ? memory.state->first_nonfinite : 0;
  }
  if (memory.state->k == 0) return;
  Wide before = 0;
  for (std::uint64_t base = 0; base < tiles; base += kThreads * kEach) {
    const std::uint64_t mine = base + threadIdx.x * kEach;
    Wide counts[kEach], sum = 0, total = 0;
    for (unsigned j = 0; j < kEach; ++j) {
      counts[j] = mine + j < tiles ? memory.tiles[mine + j] : 0;
      sum += counts[j];
    }
    Wide at = before + block_sum_before(sum, total);
    for (unsigned j = 0; j < kEach; ++j) {
      if (mine + j < tiles) memory.tiles[mine + j] = at;
      at += counts[j];
    }
    before += total;
  }
}

/// The lowest `count` bits that are set.
constexpr std::uint32_t lowest(std::uint32_t word, std::uint32_t count) {
  std::uint32_t rest = word;
  for (; count > 0 && rest != 0; --count) rest &= rest - 1;
  return word & ~rest;
}

/// Write the selected numbers, in the order of the indices.
template <class = void>
__global__ void __launch_bounds__(kThreads)
    emit_kernel(const float* x, std::uint64_t n, SelectMemory memory, std::uint32_t* index,
                float* value) {
  if (memory.state->k == 0) return;
  const std::uint32_t ties = memory.state->left;
  const unsigned lane = threadIdx.x % kLanes;
  const std::uint64_t tiles = tiles_of(n);
  for (std::uint64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::uint64_t first = tile * kTileWords + threadIdx.x - lane;
    const std::uint32_t above = memory.above[first + lane], equal = memory.equal[first + lane];
    Wide total = 0;
    const Wide before =
        memory.tiles[tile] +
        block_sum_before(static_cast<Wide>(__popc(above)) << 32 | static_cast<Wide>(__popc(equal)),
                         total);
    const auto equals = static_cast<std::uint32_t>(before);
    const std::uint32_t taken = equals < ties ? equals : ties;  // ties of lower indices
    const std::uint32_t survivors = above | lowest(equal, ties - taken);
    const std::uint32_t start = static_cast<std::uint32_t>(before >> 32) + taken;
    for (unsigned j = 0; j < kLanes; ++j) {
      const std::uint32_t word = __shfl_sync(kAllLanes, survivors, j);
      const std::uint32_t at = __shfl_sync(kAllLanes, start, j);
      if ((word >> lane & 1) == 0) continue;
      const std::uint64_t i = (first + j) * 32 + lane;
      const std::uint32_t to = at + static_cast<std::uint32_t>(__popc(word & ((1u << lane) - 1)));
      index[to] = static_cast<std::uint32_t>(i);
      value[to] = x[i];
    }
  }
}

template <bool kAdd, bool kMomentum>
void launch_add(const AddArguments& add, std::uint64_t n, unsigned blocks, SelectState* state,
                cudaStream_t stream) {
  const auto kernel = add_kernel<kAdd, kMomentum>;
  CENTROID_LAUNCH(kernel, blocks, kThreads, stream, add, n, lead_of(add, n), state);
}

/// All steps of a selection, in order.
inline void launch_select(const SelectArguments& of, unsigned processors, cudaStream_t stream) {
  const std::uint64_t n = of.n, tiles = tiles_of(n);
  const SelectMemory memory = select_memory(of.memory, n);
  const unsigned blocks = blocks_for((n + 3) / 4, processors);
  const unsigned tile_blocks = blocks_for(tiles * kTileWords, processors);
  const float* x = of.add.x;
  SelectState* state = memory.state;
  CENTROID_LAUNCH(begin_kernel<>, kFirstBins / kThreads, kThreads, stream, state);
  if (of.add.gradient == nullptr)
    launch_add<false, false>(of.add, n, blocks, state, stream);
  else if (of.add.momentum == nullptr)
    launch_add<true, false>(of.add, n, blocks, state, stream);
  else
    launch_add<true, true>(of.add, n, blocks, state, stream);
  CENTROID_LAUNCH(pick_kernel<0>, 1, kThreads, stream, state, of.k);
  CENTROID_LAUNCH(mark_kernel<>, tile_blocks, kThreads, stream, x, n, memory);
  CENTROID_LAUNCH(pick_kernel<1>, 1, kThreads, stream, state, of.k);
  CENTROID_LAUNCH(refine_kernel<>, tile_blocks, kThreads, stream, x, n, memory);
  CENTROID_LAUNCH(pick_kernel<2>, 1, kThreads, stream, state, of.k);
  CENTROID_LAUNCH(split_kernel<>, tile_blocks, kThreads, stream, x, n, memory);
  CENTROID_LAUNCH(offsets_kernel<>, 1, kThreads, stream, tiles, memory, of.summary);
  CENTROID_LAUNCH(emit_kernel<>, tile_blocks, kThreads, stream, x, n, memory, of.index, of.value);
}

/// x[index[j]] = rest[j] or 0, momentum[index[j]] = 0.
template <class = void>
__global__ void __launch_bounds__(kThreads)
    store_rest_kernel(const std::uint32_t* index, const float* rest, std::uint64_t count, float* x,
                      float* momentum) {
  for (std::uint64_t j = thread_number(); j < count; j += thread_count()) {
    const std::uint32_t i = index[j];
    x[i] = rest != nullptr ? rest[j] : 0.0f;
    if (momentum != nullptr) momentum[i] = 0.0f;
  }
}

inline void launch_store_rest(const std::uint32_t* index, const float* rest, std::uint64_t count,
                              float* x, float* momentum, unsigned processors, cudaStream_t stream) {
  CENTROID_LAUNCH(store_rest_kernel<>, blocks_for(count, processors), kThreads, stream, index, rest,
                  count, x, momentum);
}

}  // namespace centroid::cuda
