#include "common/codec/codec.h"

#include <array>
#include <string_view>

#include "common/codec/plain.h"
#include "common/tensor/text.h"

namespace centroid {
namespace {

constexpr std::string_view kGrammar = "name or name:field=value,field=value";

struct Entry {
  std::string_view name;
  std::unique_ptr<Codec> (*make)();
};

constexpr std::array<Entry, 2> kCodecs{{{"f32", make_f32_codec}, {"bf16", make_bf16_codec}}};

Error bad(const std::string& spec, const std::string& what) {
  return {ErrorCode::kInvalidArgument, "codec spec \"" + printable(spec, 128) + "\": " + what};
}

std::string known_names() {
  std::string names;
  for (const Entry& entry : kCodecs) {
    names += names.empty() ? "" : ", ";
    names += entry.name;
  }
  return names;
}

// The first field of "field=value,...", or what is wrong with it.
std::string first_field_problem(std::string_view name, std::string_view fields) {
  const std::string_view field = fields.substr(0, fields.find(','));
  const std::size_t equals = field.find('=');
  if (equals == std::string_view::npos || equals == 0)
    return "field \"" + printable(field) + "\" is not field=value";
  return "field \"" + printable(field.substr(0, equals)) + "\" is unknown, " + std::string(name) +
         " takes none";
}

}  // namespace

Result<std::unique_ptr<Codec>> make_codec(const std::string& spec) {
  const std::string_view text = spec;
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  if (name.empty())
    return bad(
        spec, "name is empty; expected " + std::string(kGrammar) + " with one of " + known_names());
  for (const Entry& entry : kCodecs) {
    if (entry.name != name) continue;
    if (colon != std::string_view::npos)
      return bad(spec, first_field_problem(name, text.substr(colon + 1)));
    return entry.make();
  }
  return bad(spec, "name \"" + printable(name) + "\" is unknown; known are " + known_names());
}

}  // namespace centroid
