#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cluster.h"

namespace centroid::test {

/// A group of one device without `step`, which a test implements.
class CustomGroup : public worker::ReplicaGroup {
 public:
  explicit CustomGroup(std::size_t elements, float gradient = 0)
      : params_(elements), gradients_(elements, gradient), current_(params_) {}

  std::size_t devices() const override { return 1; }
  std::span<float> params() override { return current_; }
  void use_params(std::span<float> memory) override { current_ = memory; }
  std::span<float> gradients() override { return gradients_; }
  Result<double> gradient_norm() override {
    double squares = 0;
    for (const float g : gradients_) squares += static_cast<double>(g) * g;
    return std::sqrt(squares);
  }
  void use_noise(std::uint64_t) override {}
  void expect(const worker::Dataset&, const std::vector<std::span<const std::uint64_t>>&) override {
  }
  Result<worker::GroupStep> evaluate(const worker::Dataset&, std::uint64_t begin,
                                     std::uint64_t end) override {
    worker::GroupStep done;
    done.samples = end - begin;
    return done;
  }

 private:
  std::vector<float> params_, gradients_;
  std::span<float> current_;
};

/// Samples with one feature, all of one class.
inline worker::DataSplit one_feature(const std::string& name, std::vector<float> x) {
  worker::DataSplit data;
  data.train.name = name;
  data.train.samples = x.size();
  data.train.features = 1;
  data.train.classes = 1;
  data.train.y = std::vector<std::uint32_t>(x.size());
  data.train.x = std::move(x);
  return data;
}

}  // namespace centroid::test
