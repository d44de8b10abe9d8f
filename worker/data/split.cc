#include "worker/data/split.h"

#include <vector>

#include "common/base/permutation.h"

namespace centroid::worker {

namespace {

constexpr std::uint64_t kTestShare = 5;  // one in five is held out

Dataset rows_of(const Dataset& all, const std::vector<std::uint64_t>& index) {
  Dataset part;
  part.name = all.name;
  part.samples = index.size();
  part.features = all.features;
  part.classes = all.classes;
  part.y.reserve(index.size());
  for (const std::uint64_t i : index) part.y.push_back(all.y[i]);
  if (!all.is_sparse()) {
    part.x.reserve(index.size() * all.features);
    for (const std::uint64_t i : index) {
      const float* row = all.x.data() + i * all.features;
      part.x.insert(part.x.end(), row, row + all.features);
    }
    return part;
  }
  std::uint64_t values = 0;
  for (const std::uint64_t i : index) values += all.row_begin[i + 1] - all.row_begin[i];
  part.cols.reserve(values);
  part.vals.reserve(values);
  part.row_begin.reserve(index.size() + 1);
  part.row_begin.push_back(0);
  for (const std::uint64_t i : index) {
    for (std::uint64_t k = all.row_begin[i]; k < all.row_begin[i + 1]; ++k) {
      part.cols.push_back(all.cols[k]);
      part.vals.push_back(all.vals[k]);
    }
    part.row_begin.push_back(part.cols.size());
  }
  return part;
}

}  // namespace

DataSplit stratified_split(const Dataset& all, std::uint64_t seed) {
  std::vector<std::vector<std::uint64_t>> of_class(all.classes);
  for (std::uint64_t i = 0; i < all.samples; ++i) of_class[all.y[i]].push_back(i);
  std::vector<bool> is_test(all.samples, false);
  for (std::uint32_t c = 0; c < all.classes; ++c) {
    const auto& members = of_class[c];
    const auto order = permutation(members.size(), seed, c);
    const std::uint64_t held_out = (members.size() + kTestShare / 2) / kTestShare;
    for (std::uint64_t i = 0; i < held_out; ++i) is_test[members[order[i]]] = true;
  }
  std::vector<std::uint64_t> train;
  std::vector<std::uint64_t> test;
  for (std::uint64_t i = 0; i < all.samples; ++i) (is_test[i] ? test : train).push_back(i);
  return {rows_of(all, train), rows_of(all, test)};
}

}  // namespace centroid::worker
