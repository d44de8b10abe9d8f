#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/service/rows_loader.h"

namespace centroid::server {

/// Some servers are given their keys, with what the newest checkpoint and their journals have of
/// them. Of one thread.
class RowsBringing : private RowsPart {
 public:
  /// `saved`: of the start.
  RowsBringing(RowsContext& context, RowsHolders& servers, RowsLoader& loader, std::string& run_id,
               std::optional<SavedRows> saved, std::vector<std::size_t> which)
      : RowsPart(context),
        servers_(servers),
        loader_(loader),
        run_id_(run_id),
        which_(std::move(which)),
        saved_(std::move(saved)) {}

  /// fails when one of them is lost, or refuses its part (it leaves then, or comes again); what is
  /// wrong with the checkpoint ends the job.
  Task<Status> run();

 private:
  // Each step needs those before it.
  Task<Status> find_saved();
  Status set_tables();
  Task<Status> send_tables();
  Task<Status> put_known_pushes();
  Task<Status> load_saved();
  Task<Status> replay_journals();

  void set_owners();
  Task<Status> replay_mine();
  Task<Status> await_replay(std::size_t which);

  RowsHolders& servers_;
  RowsLoader& loader_;
  std::string& run_id_;
  const std::vector<std::size_t> which_;
  std::optional<SavedRows> saved_;
  proto::Tables tables_;
  std::vector<bool> wanted_;  ///< by server
  bool is_needed_ = false;    ///< what the checkpoint has
};

}  // namespace centroid::server
