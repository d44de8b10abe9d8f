#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/trace_capture.h"

/// Summaries of traces, for people and for spreadsheets. Pure, except `export_as`.
namespace centroid::trace {

/// One lane of one process, or one GPU by its samples.
struct LaneSummary {
  std::string process, lane, stages;
  std::size_t process_number = 0, spans = 0, gaps = 0;
  double window_seconds = 0;  ///< from the process's first stage to its last
  double busy_seconds = 0, idle_seconds = 0, longest_gap_seconds = 0;
  /// For a lane that computes: the seconds of other stages of its process while it was idle.
  bool is_device = false;
  std::vector<std::pair<std::string, double>> meanwhile_seconds;
};

/// A time in which a device was idle.
struct Gap {
  std::size_t process_number = 0;
  std::string lane;
  double begin_us = 0, end_us = 0;
  double seconds() const { return 1e-6 * (end_us - begin_us); }
};

/// Definition of a gap: on lanes that compute, a time without a span of at least this length; on
/// GPUs (tracks "gpu N utilization"), samples below a utilization over at least this length.
struct GapOptions {
  double least_seconds = 0.001;
  double least_gpu_seconds = 1;
  double gpu_ratio = 0.05;
};

/// One row for each lane with stages, by process and lane; then one for each GPU.
std::vector<LaneSummary> summarize(std::span<const Capture> captures,
                                   const GapOptions& options = {});
/// Heads of a table of summaries, and the cells of one.
std::vector<std::string> summary_heads();
std::vector<std::string> summary_cells(const LaneSummary& lane, std::string (*duration)(double));
/// Ordered by time.
std::vector<Gap> gaps_of(std::span<const Capture> captures, const GapOptions& options = {});

/// RFC 4180 with a head line. A row for each span (kind stage or period), mark, sample and gap:
/// kind, process, lane, name, begin_unix_seconds, duration_seconds, round, value, text. A text that
/// a spreadsheet would compute (=, +, -, @ in front) gets a leading '.
std::string to_csv(std::span<const Capture> captures, const GapOptions& options = {});

/// One self-contained page without scripts: a picture of all lanes over time, curves of the
/// samples, and tables of lanes, longest gaps and marks.
/// bounds  64 lanes and 16 curves of a process are drawn, 800 columns; 100 gaps, 500 marks
std::string to_html(std::span<const Capture> captures, const GapOptions& options = {});

/// A document of this process's trace, with its media type.
struct Export {
  std::string text, content_type;
};
/// `format`: json, csv or html; nothing for another one. `seconds`: as in `capture`.
std::optional<Export> export_as(std::string_view format, double seconds);
/// The value of format= in a query; json by default.
std::string_view query_format(std::string_view query);
/// Content security policy of the page: it may load nothing and run nothing.
inline constexpr const char* kPagePolicy =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

/// `text` escaped for XML and HTML; invalid UTF-8 becomes '?'.
std::string escaped(std::string_view text);

/// Bytes of the character at `at`; 0: invalid UTF-8.
std::size_t utf8_length(std::string_view text, std::size_t at);

}  // namespace centroid::trace
