#include "common/optim/optimizer_fields.h"

#include <charconv>

#include "common/optim/optimizer.h"

namespace centroid {
namespace {

/// Another text for each other number.
std::string exact(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace

void add_optimizer_fields(config::Schema& s, OptimizerConfig& optimizer) {
  s.field("optimizer", &optimizer.name, {.text = "update rule", .choices = optimizer_names()});
  s.field("lr", &optimizer.learning_rate, {.text = "learning rate", .min = 0.0});
  s.field("lr_schedule", &optimizer.schedule, {.text = "factor on the learning rate"});
  s.field("clip_norm", &optimizer.clip_norm, {.text = "limit of the gradient's norm", .min = 0.0});
  s.field("momentum", &optimizer.momentum, {.text = "momentum, nesterov", .min = 0.0});
  s.field("beta1", &optimizer.beta1, {.text = "adam, adamw, yogi"});
  s.field("beta2", &optimizer.beta2, {.text = "adam, adamw, yogi"});
  s.field("epsilon", &optimizer.epsilon, {.text = "adam, adamw, yogi, adagrad"});
  s.field("weight_decay", &optimizer.weight_decay, {.text = "as on the server"});
  s.field("l1", &optimizer.l1, {.text = "ftrl"});
  s.field("ftrl_beta", &optimizer.ftrl_beta, {.text = "ftrl"});
}

std::vector<std::pair<std::string, std::string>> optimizer_values(const OptimizerConfig& o) {
  return {{"optimizer", o.name},
          {"lr", exact(o.learning_rate)},
          {"lr_schedule", o.schedule},
          {"clip_norm", exact(o.clip_norm)},
          {"momentum", exact(o.momentum)},
          {"beta1", exact(o.beta1)},
          {"beta2", exact(o.beta2)},
          {"epsilon", exact(o.epsilon)},
          {"weight_decay", exact(o.weight_decay)},
          {"l1", exact(o.l1)},
          {"ftrl_beta", exact(o.ftrl_beta)}};
}

}  // namespace centroid
