#include "common/checkpoint/journal_match.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <tuple>

namespace centroid::journal {
namespace {

constexpr std::string_view kServer = "server=", kFragments = " fragments=";

using Ended = Contents::Ended;

/// Consecutive rounds train this many parts of the model in turn.
std::uint64_t fragments_of(const std::string& terms) {
  std::uint64_t fragments = 1;
  if (const std::size_t at = terms.find(kFragments); at != std::string::npos)
    std::from_chars(terms.data() + at + kFragments.size(), terms.data() + terms.size(), fragments);
  return std::max<std::uint64_t>(fragments, 1);
}

bool is_of(const Contents& one, const std::string& server, const std::string& run_id) {
  // What follows the damage is unknown.
  return one.server() == server && (!one.damage.empty() || one.has_run(run_id));
}

std::size_t owned_by(const Route& route, std::size_t server) {
  return static_cast<std::size_t>(std::ranges::count(route.owners, server));
}

/// The rounds of a run in one server's journal.
class Prepared {
 public:
  Prepared(const Contents& of, const std::string& run_id, std::uint64_t fragments)
      : fragments_(fragments) {
    for (const Ended& one : of.ended) {
      if (of.bases[one.base].run_id != run_id || !one.is_commit) continue;
      // A part that was prepared again replaces one that was never committed.
      parts_[{one.round.value, one.attempt}] = &one;
      if (one.needed > 0) turns_.insert(one.optimizer_step % fragments);
      last_ = one.round;
    }
  }

  /// Why a part of `owned` chunks is missing; empty: it is there. No journal records the chunks of
  /// a fragment, so other rounds of its turn decide about a round that a server took no part in.
  std::string trouble(const Ended& committed, std::size_t owned) const {
    const auto found = parts_.find({committed.round.value, committed.attempt});
    if (found == parts_.end()) {
      const bool had_none =
          fragments_ > 1 && !turns_.contains(committed.optimizer_step % fragments_);
      if (had_none && last_ && *last_ > committed.round) return "";
      if (!last_) return "has no round of this run";
      return std::string("does not have it, and ends with round ").append(to_string(*last_));
    }
    const Ended& part = *found->second;
    const std::size_t needed = fragments_ > 1 ? part.needed : owned;
    if (part.has == needed && part.has == part.needed) return "";
    return "has " + std::to_string(part.has) + " of " + std::to_string(needed) + " chunks of it";
  }

 private:
  std::uint64_t fragments_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, const Ended*> parts_;
  std::set<std::uint64_t> turns_;
  std::optional<Round> last_;
};

/// One of a server's journals: there may be copies.
struct Copy {
  const Contents* of = nullptr;
  Prepared has;
};

}  // namespace

std::string Contents::server() const {
  if (bases.empty() || !bases.back().terms.starts_with(kServer)) return "";
  return bases.back().terms.substr(kServer.size());
}

bool Contents::has_run(const std::string& run_id) const {
  return std::ranges::find(bases, run_id, &Base::run_id) != bases.end();
}

Contents read_contents(const std::filesystem::path& folder) {
  Contents out;
  out.folder = folder;
  std::set<std::uint32_t> chunks;  // of the attempt that has not ended yet
  Head open;
  std::size_t present = 0;  // route; after the base they start again
  const auto each = [&](const Reader::Record& record) {
    if (const auto* base = std::get_if<Base>(&record)) {
      out.bases.push_back(*base);
      chunks.clear();
      present = 0;
    } else if (const auto* route = std::get_if<Route>(&record)) {
      present = out.routes.size();
      out.routes.push_back(*route);
    } else if (const auto* chunk = std::get_if<Reader::Chunk>(&record)) {
      if (chunk->head.round != open.round || chunk->head.attempt != open.attempt) chunks.clear();
      open = chunk->head;
      chunks.insert(open.chunk.value);
    } else if (const auto* end = std::get_if<Reader::End>(&record)) {
      const bool is_same = end->head.round == open.round && end->head.attempt == open.attempt;
      Ended ended;
      ended.round = end->head.round;
      ended.attempt = end->head.attempt;
      ended.optimizer_step = end->commit.optimizer_step;
      ended.is_commit = end->head.kind == Kind::kCommit;
      ended.has = is_same ? static_cast<std::uint32_t>(chunks.size()) : 0;
      ended.needed = end->commit.chunks;
      ended.base = out.bases.size() - 1;
      ended.route = present;
      out.ended.push_back(ended);
      chunks.clear();
    }
  };
  const auto report = verify(folder, each);
  if (report.ok())
    out.report = *report;
  else
    out.damage = report.error().message();
  return out;
}

Match match(const Contents& leader, const std::vector<Contents>& others, Round over) {
  Match out;
  using ServerAndFolder = std::pair<std::string, std::filesystem::path>;
  std::set<std::string> sound, absent, unsound;
  std::map<ServerAndFolder, std::pair<std::string, std::uint64_t>>
      troubles;  // with the number of further ones
  std::map<std::pair<std::string, std::string>, std::vector<Copy>> prepared;  // by server and run
  const auto note = [&](const ServerAndFolder& whose, const std::string& trouble) {
    const auto [at, is_first] = troubles.try_emplace(whose, trouble, 0);
    if (!is_first) ++at->second.second;
    unsound.insert(whose.first);
  };
  const auto copies_of = [&](const std::string& server, const Base& base) -> std::vector<Copy>& {
    const auto [at, is_new] = prepared.try_emplace({server, base.run_id});
    if (is_new)
      for (const Contents& other : others)
        if (is_of(other, server, base.run_id))
          at->second.push_back({&other, {other, base.run_id, fragments_of(base.terms)}});
    return at->second;
  };
  for (const Ended& one : leader.ended) {
    if (!one.is_commit || one.round <= over) continue;
    const Base& base = leader.bases[one.base];
    const Route& route = leader.routes[one.route];
    const std::string round = "round " + to_string(one.round) + " is committed, and ";
    if (one.has != one.needed)
      note({"", leader.folder}, round + "the leader's journal has " + std::to_string(one.has) +
                                    " of its own " + std::to_string(one.needed) + " chunks of it");
    bool is_spread = false;
    for (std::size_t i = 1; i < route.servers.size(); ++i) {
      const std::string& server = route.servers[i];
      const std::size_t owned = owned_by(route, i);
      if (owned == 0) continue;
      is_spread = true;
      const std::vector<Copy>& copies = copies_of(server, base);
      (copies.empty() ? absent : sound).insert(server);
      for (const Copy& copy : copies) {
        if (!copy.of->damage.empty()) {  // reported already
          unsound.insert(server);
          continue;
        }
        const std::string trouble = copy.has.trouble(one, owned);
        const std::string which =
            copies.size() == 1 ? "" : std::string(" in ").append(copy.of->folder.string());
        if (!trouble.empty())
          note({server, copy.of->folder},
               round + "the journal of server '" + server + "'" + which + " " + trouble);
      }
    }
    if (!is_spread) continue;
    if (out.rounds++ == 0) out.first = one.round;
    out.last = one.round;
  }
  for (const std::string& server : unsound) sound.erase(server);
  for (const auto& [whose, trouble] : troubles) {
    const std::string more =
        trouble.second == 0 ? "" : "; so for " + std::to_string(trouble.second) + " more";
    out.problems.push_back(trouble.first + more);
  }
  out.sound.assign(sound.begin(), sound.end());
  out.absent.assign(absent.begin(), absent.end());
  return out;
}

}  // namespace centroid::journal
