#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/trace_capture.h"

/// What traces say, for people and for spreadsheets. Pure, but for `export_as`.
namespace centroid::trace {

/// One lane of one process, or one GPU by its samples.
struct LaneSummary {
  std::string process, lane, stages;
  std::size_t process_number = 0, spans = 0, gaps = 0;
  double window_seconds = 0;  ///< from the process's first stage to its last
  double busy_seconds = 0, idle_seconds = 0, longest_gap_seconds = 0;
  /// Of a lane that computes: what the rest of its process did while it was idle, seconds by stage.
  bool is_device = false;
  std::vector<std::pair<std::string, double>> meanwhile_seconds;
};

/// A time in which a device did nothing.
struct Gap {
  std::size_t process_number = 0;
  std::string lane;
  double begin_us = 0, end_us = 0;
  double seconds() const { return 1e-6 * (end_us - begin_us); }
};

/// What counts as a gap: of lanes that compute, time without a span, at least so long; of GPUs
/// (tracks "gpu N utilization"), samples below a utilization, together at least so long.
struct GapOptions {
  double least_seconds = 0.001;
  double least_gpu_seconds = 1;
  double gpu_ratio = 0.05;
};

/// A row for each lane with stages, in the order of processes and lanes; then one for each GPU.
std::vector<LaneSummary> summarize(std::span<const Capture> captures,
                                   const GapOptions& options = {});
/// In the order of time.
std::vector<Gap> gaps_of(std::span<const Capture> captures, const GapOptions& options = {});

/// RFC 4180 with a head line. A row for each span (kind stage or period), mark, sample and gap:
/// kind, process, lane, name, begin_unix_seconds, duration_seconds, round, value, text. A text
/// that a spreadsheet would compute (=, +, -, @ in front) gets a ' before it.
std::string to_csv(std::span<const Capture> captures, const GapOptions& options = {});

/// One page that needs nothing else, no script and no other file: a picture of all lanes over time,
/// curves of the samples, and tables of lanes, longest gaps and marks.
/// bounds  64 lanes and 16 curves of a process are drawn, 800 columns; 100 gaps, 500 marks
std::string to_html(std::span<const Capture> captures, const GapOptions& options = {});

/// A document of this process's trace, and what it is.
struct Export {
  std::string text, content_type;
};
/// `format`: json, csv or html; nothing for another one. `seconds`: as capture's.
std::optional<Export> export_as(std::string_view format, double seconds);
/// The value of format= in a query; json where it is not said.
std::string_view query_format(std::string_view query);
/// For who serves to_html: the page may load nothing, and run nothing.
inline constexpr const char* kPagePolicy =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

/// `text` as it stands in XML and HTML; what is no UTF-8 is '?'.
std::string escaped(std::string_view text);

/// Bytes of the character at `at`; 0: it is no UTF-8.
std::size_t utf8_length(std::string_view text, std::size_t at);

}  // namespace centroid::trace
