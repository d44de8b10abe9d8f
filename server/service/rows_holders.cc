#include "server/service/rows_holders.h"

#include <algorithm>
#include <utility>

#include "common/async/wait_on.h"
#include "common/base/log.h"
#include "server/tables/row_blocks.h"

namespace centroid::server {

using proto::ServersKind;
using proto::TablesKind;

std::optional<std::size_t> RowsHolders::index_of(const std::string& server) const {
  const auto found = std::ranges::find(holders_, server, &Holder::name);
  if (found == holders_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - holders_.begin());
}

bool RowsHolders::owns(std::size_t which) const {
  const auto& owners = rows_.moves().route().owners;
  return std::ranges::find(owners, which) != owners.end();
}

void RowsHolders::lost(Holder& holder) {
  if (holder.state == State::kServing)
    log::warn("rows.server_lost",
              {{"server", holder.name}, {"action", "requests for its rows wait for it"}});
  ++losses_;
  take_report(holder, {});
  holder.state = State::kAbsent;
  holder.is_full = false;
  holder.link.reset();
  holder.gone_since = clock_.now();
}

Task<Status> RowsHolders::ask(std::size_t which, TablesKind kind, std::vector<std::byte> head) {
  const Link link = holders_[which].link;
  if (!link)
    co_return Error(ErrorCode::kUnavailable, "server '" + holders_[which].name + "' is gone");
  const auto reply = co_await shards_.ask(link, static_cast<ServersKind>(kind), std::move(head));
  if (!reply.ok()) co_return reply.error();
  co_return Status();
}

/// Ask from the blocking thread.
Result<transport::Reply> RowsHolders::ask_blocking(const Link& link, TablesKind kind,
                                                   std::vector<std::byte> head, Bytes payload) {
  auto asked = shards_.ask(link, static_cast<ServersKind>(kind), std::move(head), payload);
  return wait_on(executor_, std::move(asked));
}

Result<PushedRows> RowsHolders::fetch_pushes(const Link& link, std::uint32_t clients) {
  PushedRows pushed;
  while (pushed.clients.size() < clients) {
    proto::PushesBlock wanted;
    wanted.first = static_cast<std::uint32_t>(pushed.clients.size());
    CENTROID_ASSIGN(const auto reply,
                    ask_blocking(link, TablesKind::kPushesRead, proto::encode(wanted)));
    CENTROID_ASSIGN(const auto head, proto::decode<proto::PushesBlock>(reply.head));
    CENTROID_ASSIGN(const auto some, pushes_of(head, reply.payload));
    if (some.empty())
      return Error(ErrorCode::kAborted,
                   "server '" + link->name + "' keeps fewer clients than it said");
    pushed.clients.insert(pushed.clients.end(), some.begin(), some.end());
  }
  return pushed;
}

Task<void> RowsHolders::refresh() {
  refreshed_ = clock_.now();
  for (std::size_t i = 1; i < holders_.size(); ++i) {
    const Link link = holders_[i].link;
    if (holders_[i].state == State::kAbsent || !link) continue;
    const auto reply = co_await shards_.ask(
        link, static_cast<ServersKind>(TablesKind::kTablesReport), std::vector<std::byte>());
    const auto at = std::ranges::find(holders_, link, &Holder::link);  // they may have changed
    if (!reply.ok() || at == holders_.end()) continue;
    auto report = proto::decode<proto::TablesReport>(reply->head);
    if (report.ok() && report->is_loaded) take_report(*at, std::move(report).value());
  }
}

void RowsHolders::take_report(Holder& holder, proto::TablesReport report) {
  if (report.is_loaded && report.changes != holder.report.changes) ++seen_;
  const proto::TablesReport before = std::exchange(holder.report, std::move(report));
  tell_elsewhere(before, holder.report);
}

/// What another server's tables have now beside what it told before, for the metrics.
void RowsHolders::tell_elsewhere(const proto::TablesReport& before,
                                 const proto::TablesReport& now) {
  for (std::size_t table = 0; table < rows_.store().size(); ++table) {
    proto::TableReport total, more;
    const auto of = [&](const proto::TablesReport& report) {
      return table < report.tables.size() ? report.tables[table] : proto::TableReport();
    };
    const proto::TableReport was = of(before), is = of(now);
    const auto grown = [](std::uint64_t from, std::uint64_t to) {
      return to > from ? to - from : 0;
    };
    if (!before.tables.empty()) {  // else they are of before it came
      more.pulled = grown(was.pulled, is.pulled);
      more.pushed = grown(was.pushed, is.pushed);
      more.admitted = grown(was.admitted, is.admitted);
      more.held_back = grown(was.held_back, is.held_back);
      more.evicted = grown(was.evicted, is.evicted);
      more.expired = grown(was.expired, is.expired);
    }
    for (const Holder& holder : holders_) {
      const proto::TableReport part = of(holder.report);
      total.rows += part.rows;
      total.waiting += part.waiting;
      total.bytes += part.bytes;
    }
    rows_.store().show_elsewhere(table, total, more);
  }
}

void RowsHolders::add_to(std::vector<TableView>& views) const {
  for (const Holder& holder : holders_)
    for (std::size_t i = 0; i < std::min(views.size(), holder.report.tables.size()); ++i) {
      const proto::TableReport& more = holder.report.tables[i];
      TableView& view = views[i];
      view.rows += more.rows, view.waiting += more.waiting;
      view.bytes += more.bytes, view.payload_bytes += more.payload_bytes;
      view.pulled += more.pulled, view.pushed += more.pushed;
      view.admitted += more.admitted, view.held_back += more.held_back;
      view.evicted += more.evicted, view.expired += more.expired;
      PartView& part = view.servers.emplace_back();
      part.server = holder.name;
      part.bytes = more.bytes;
      part.rows = more.rows;
    }
}

bool RowsHolders::journal_wants_checkpoint(std::uint64_t bytes) const {
  return std::ranges::any_of(holders_, [&](const Holder& holder) {
    const bool is_long = bytes != 0 && holder.report.journal_bytes > bytes;
    return holder.state == State::kServing && (holder.report.is_broken || is_long);
  });
}

}  // namespace centroid::server
