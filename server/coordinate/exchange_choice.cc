#include "server/coordinate/exchange_choice.h"

namespace centroid::server {

ExchangeChoice choose_exchange(const ExchangeFacts& facts) {
  const auto star = [](std::string why) { return ExchangeChoice{false, std::move(why)}; };
  const auto name_of = [](const ExchangeFacts::Worker& worker) {
    return "worker '" + std::string(worker.name) + "'";
  };
  if (facts.workers.size() < 2) return star("there is one worker");
  if (facts.workers.size() > kMostPeers)
    return star("there are more than " + std::to_string(kMostPeers) + " workers");
  if (facts.model_bytes < kLeastBytesAmongPeers)
    return star("the model has " + std::to_string(facts.model_bytes) + " bytes, fewer than " +
                std::to_string(kLeastBytesAmongPeers));
  const ExchangeFacts::Worker& first = facts.workers.front();
  for (const ExchangeFacts::Worker& worker : facts.workers) {
    if (!worker.is_reachable)
      return star(name_of(worker) + " accepts no connections of other workers");
    if (worker.codec != first.codec)
      return star(name_of(worker) + " has codec " + std::string(worker.codec) + ", " +
                  name_of(first) + " has " + std::string(first.codec));
  }
  if (!facts.failure.empty()) return star(std::string(facts.failure));
  return {true, "the workers reach each other"};
}

}  // namespace centroid::server
