#include "server/service/past_rounds.h"

#include <utility>

#include "common/checkpoint/fault_point.h"

namespace centroid::server {

namespace {

Error mismatched(const std::string& folder, const std::string& why) {
  return {ErrorCode::kFailedPrecondition, "journal " + folder + ": " + why};
}

/// Take the rate out of a segment's terms (RoundJournal::terms). None: they are no such text.
std::optional<PastRound::Rate> take_rate(std::string& terms) {
  constexpr std::string_view kRate = " learning_rate=", kSchedule = " schedule=",
                             kBehind = " clip_norm=";
  const std::size_t begin = terms.find(kRate);
  const std::size_t middle = begin == std::string::npos ? begin : terms.find(kSchedule, begin);
  const std::size_t end = middle == std::string::npos ? middle : terms.find(kBehind, middle);
  if (end == std::string::npos) return std::nullopt;
  const std::string number = terms.substr(begin + kRate.size(), middle - begin - kRate.size());
  char* stop = nullptr;
  PastRound::Rate rate;
  rate.learning_rate = std::strtod(number.c_str(), &stop);
  if (number.empty() || *stop != '\0') return std::nullopt;
  rate.schedule = terms.substr(middle + kSchedule.size(), end - middle - kSchedule.size());
  terms.erase(begin, end - begin);
  return rate;
}

}  // namespace

PastRounds::PastRounds(std::unique_ptr<journal::Reader> reader, const JobState& job,
                       const RoundJournal& journal, std::string folder)
    : reader_(std::move(reader)),
      job_(job),
      plan_(job.store().plan()),
      form_(job.shard->form()),
      terms_(journal.terms()),
      folder_(std::move(folder)),
      next_(job.round),
      step_(job.store().optimizer_step()),
      route_(std::make_shared<journal::Route>()),
      at_(plan_.chunks().size()) {}

Status PastRounds::check(const journal::Base& base) {
  if (base.run_id != job_.run_id)
    return mismatched(folder_, "it belongs to run '" + base.run_id + "', the checkpoint to '" +
                                   job_.run_id + "': move the journal away to go on without it");
  std::string then = base.terms, now = terms_;
  const auto rate = take_rate(then);
  (void)take_rate(now);
  rate_ = rate.value_or(PastRound::Rate());
  mismatch_.reset();
  if (!rate || then != now || base.plan_hash != plan_.hash())
    mismatch_ = mismatched(
        folder_,
        "it was written with other settings, with which its rounds have other bits: resume "
        "with the old ones until there is a checkpoint (a stop writes one); learning_rate and "
        "schedule may be others. They were: " +
            base.terms + (then == now ? ", and another chunk_bytes" : "") + "; now: " + terms_);
  if (base.round.value >= next_.value)
    return mismatched(folder_, "its segment begins after round " + to_string(base.round) +
                                   ", the checkpoint ends at round " +
                                   std::to_string(next_.value - 1) +
                                   ": the rounds between are lost. Move the journal away to go on "
                                   "from the checkpoint");
  return {};
}

Result<std::optional<PastRound>> PastRounds::next() {
  fault::point("journal.reading");
  while (!is_at_gap_) {
    CENTROID_ASSIGN(auto record, reader_->next());
    if (!record) break;
    if (const auto* base = std::get_if<journal::Base>(&*record)) {
      is_at_gap_ = base->follows_gap && base->round.value >= next_.value;
      route_ = std::make_shared<journal::Route>();  // it stands behind the base anew
      if (!is_at_gap_) CENTROID_TRY(check(*base));
    } else if (auto* route = std::get_if<journal::Route>(&*record)) {
      if (mismatch_) continue;
      if (route->owners.size() != at_.size())
        return mismatched(folder_, "a route of " + std::to_string(route->owners.size()) +
                                       " chunks, the model has " + std::to_string(at_.size()));
      route_ = std::make_shared<journal::Route>(std::move(*route));
    } else if (const auto* chunk = std::get_if<journal::Reader::Chunk>(&*record)) {
      if (mismatch_ || chunk->head.round < next_) {
        reader_->skip();
        continue;
      }
      CENTROID_ASSIGN(const bool is_sound, take_chunk(chunk->head));
      if (!is_sound) break;
    } else if (auto* end = std::get_if<journal::Reader::End>(&*record)) {
      if (end->head.round < next_) continue;
      if (mismatch_) return *mismatch_;
      CENTROID_ASSIGN(PastRound round, take_end(std::move(*end)));
      return std::optional(std::move(round));
    }
  }
  is_over_ = true;
  return std::optional<PastRound>();
}

/// Numbers of one of this server's own chunks. False: it is the torn tail.
Result<bool> PastRounds::take_chunk(const journal::Head& head) {
  if (head.round != present_.round || head.attempt != present_.attempt || count_ == 0) {
    at_.assign(at_.size(), PastRound::kNotChanged);
    count_ = 0;
  }
  present_ = head;
  const bool is_known = head.chunk.value < at_.size() && head.form == form_ &&
                        is_mine(head.chunk) &&
                        job_.shard->fragments().number_of(plan_.chunk(head.chunk).tensor) ==
                            job_.shard->fragments().turn(step_);
  const std::uint64_t bytes = is_known ? plan_.chunk(head.chunk).elements * sizeof(float) : 0;
  if (!is_known || head.payload_bytes != bytes || at_[head.chunk.value] != PastRound::kNotChanged)
    return mismatched(folder_, "round " + to_string(head.round) + ", chunk " +
                                   to_string(head.chunk) +
                                   ": not a chunk of this model, or twice there");
  at_[head.chunk.value] = reader_->payload_at();
  ++count_;
  return reader_->check();
}

Result<PastRound> PastRounds::take_end(journal::Reader::End end) {
  PastRound round;
  round.head = end.head;
  round.commit = std::move(end.commit);
  round.form = form_;
  round.rate = rate_;
  round.route = route_;
  round.segment = reader_->segment();
  round.at.resize(at_.size());
  const bool is_complete = end.head.round == present_.round && end.head.attempt == present_.attempt;
  if (count_ > 0 && is_complete) round.at = at_;
  std::size_t wanted = 0;
  for (const Chunk& chunk : fragment().chunks) {
    if (is_mine(chunk.id)) {
      ++wanted;
    } else {
      round.elsewhere.push_back(chunk);
      round.at[chunk.id.value] = PastRound::kInSpare;
    }
  }
  if (round.head.round != next_ ||
      (round.counts() && wanted > 0 && (count_ != wanted || !is_complete)))
    return mismatched(folder_, "the end of round " + to_string(round.head.round) +
                                   " came where that of round " + to_string(next_) +
                                   " was expected, with " + std::to_string(count_) + " of " +
                                   std::to_string(wanted) + " chunks");
  count_ = 0;
  next_ = next_.next();
  if (round.counts()) ++step_;
  return round;
}

}  // namespace centroid::server
