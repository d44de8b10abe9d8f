#include "common/optim/optimizer_fields.h"

#include "common/optim/optimizer.h"

namespace centroid {

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

}  // namespace centroid
