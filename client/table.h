#pragma once

#include <string>
#include <vector>

namespace centroid::client {

/// Format of answers.
struct Style {
  bool is_json = false;
  bool has_colour = false;  ///< only on a terminal
};

enum class Colour { kPlain, kGood, kWarning, kBad, kFaint };

/// The text in that colour, if colours are on.
std::string paint(const Style& style, Colour colour, const std::string& text);

/// The text with control characters replaced.
std::string cleaned(std::string text);

/// Rows under a header; columns as wide as their widest cell, numbers to the right. Control
/// characters are replaced, so that a foreign name cannot control the terminal.
std::string table(const std::vector<std::string>& header,
                  const std::vector<std::vector<std::string>>& rows);

std::string size_text(double bytes);        ///< 2306867 -> "2.2 MiB"
std::string duration_text(double seconds);  ///< 0.0123 -> "12.3 ms", 187 -> "3 min 07 s"
std::string share_text(double share);       ///< 0.123 -> "12.3 %"
std::string number_text(double value);  ///< at most 4 digits behind the point; "-" when not finite

}  // namespace centroid::client
