#include "server/api/picture.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "common/base/trace_report.h"

namespace centroid::server {

namespace {

using trace::escaped;

constexpr std::size_t kMostBoxes = 64, kMostTensors = 24;
constexpr std::size_t kLongestName = 60;  // characters of a name
constexpr double kLine = 16;

constexpr std::string_view kStyle =
    "<style>svg{color-scheme:light dark;color:#111;background:#fff;font:12px system-ui,sans-serif}"
    "text{fill:currentColor}.faint{opacity:.65}.box{fill:none;stroke:currentColor;"
    "stroke-opacity:.5}.link{stroke:currentColor;stroke-opacity:.4;fill:none}"
    ".part{fill:#3b82f6}.rest{fill:#8884}"
    "@media(prefers-color-scheme:dark){svg{color:#eee;background:#111}}</style>\n";

std::string number(double value, const char* form = "%.0f") {
  char text[40];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

/// 1234567 -> 1,234,567
std::string grouped(std::uint64_t value) {
  std::string text = std::to_string(value);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

std::string cut(const std::string& text) {
  if (text.size() <= kLongestName) return text;
  std::size_t at = 0;  // whole characters
  while (at < kLongestName) at += std::max<std::size_t>(trace::utf8_length(text, at), 1);
  return text.substr(0, at) + "…";
}

class Drawing {
 public:
  void text(double x, double y, const std::string& of, const char* style = nullptr) {
    body_.append("<text x=\"").append(number(x)).append("\" y=\"").append(number(y));
    if (style != nullptr) body_.append("\" class=\"").append(style);
    body_.append("\">").append(escaped(cut(of))).append("</text>\n");
  }
  void box(double x, double y, double width, double height, const char* style = "box") {
    body_.append("<rect class=\"").append(style).append("\" x=\"").append(number(x));
    body_.append("\" y=\"").append(number(y)).append("\" width=\"").append(number(width, "%.1f"));
    body_.append("\" height=\"").append(number(height)).append("\" rx=\"3\"/>\n");
  }
  void line(double x, double y, double to_x, double to_y) {
    body_.append("<line class=\"link\" x1=\"").append(number(x)).append("\" y1=\"");
    body_.append(number(y)).append("\" x2=\"").append(number(to_x)).append("\" y2=\"");
    body_.append(number(to_y)).append("\"/>\n");
  }
  std::string document(double width, double height, const std::string& title) const {
    std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"";
    out.append(number(width)).append("\" height=\"").append(number(height));
    out.append("\" viewBox=\"0 0 ").append(number(width)).append(" ").append(number(height));
    out.append("\">\n<title>").append(escaped(title)).append("</title>\n").append(kStyle);
    return out.append(body_).append("</svg>\n");
  }

 private:
  std::string body_;
};

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text(1, '[');
  for (std::size_t i = 0; i < shape.size(); ++i)
    text.append(i == 0 ? "" : " × ").append(std::to_string(shape[i]));
  return text.append("]");
}

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

/// Parts of a tensor's name: "blocks" "3" "attention.qkv.weight"; without a number "embedding" ""
/// "weight".
struct Name {
  std::string stem, index, rest;
};
Name name_of(const std::string& text) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('.', begin), text.size());
    if (begin > 0 && is_number(std::string_view(text).substr(begin, end - begin)))
      return {text.substr(0, begin - 1), text.substr(begin, end - begin),
              end < text.size() ? text.substr(end + 1) : ""};
    begin = end + 1;
  }
  const std::size_t dot = text.rfind('.');
  if (dot == std::string::npos) return {text, "", ""};
  return {text.substr(0, dot), "", text.substr(dot + 1)};
}

struct Layer {
  std::string stem, first, last;  // numbers, if there are some
  std::uint64_t count = 1, elements = 0;
  std::vector<std::pair<std::string, std::vector<std::uint64_t>>> tensors;
  std::string title() const {
    std::string text = stem;
    if (!first.empty()) text.append(".").append(first);
    if (count > 1) text.append(" … ").append(stem).append(".").append(last);
    if (count > 1) text.append(", ").append(std::to_string(count)).append(" times");
    return text;
  }
};

std::vector<Layer> layers_of(const ParametersView& model) {
  std::vector<Layer> layers;
  for (const ParameterView& tensor : model.parameters) {
    const Name name = name_of(tensor.name);
    const bool is_same =
        !layers.empty() && layers.back().stem == name.stem && layers.back().first == name.index;
    if (!is_same) {
      Layer layer;
      layer.stem = name.stem;
      layer.first = layer.last = name.index;
      layers.push_back(std::move(layer));
    }
    layers.back().tensors.emplace_back(name.rest, tensor.shape);
    layers.back().elements += tensor.elements;
  }
  std::vector<Layer> out;
  for (Layer& layer : layers) {
    const bool is_again = !out.empty() && !layer.first.empty() && out.back().stem == layer.stem &&
                          out.back().tensors == layer.tensors;
    if (!is_again) {
      out.push_back(std::move(layer));
      continue;
    }
    out.back().last = layer.first;
    ++out.back().count;
  }
  return out;
}

}  // namespace

std::string model_picture(const std::string& spec, const ParametersView& model) {
  constexpr double kWidth = 520, kLeft = 10;
  std::uint64_t total = 0;
  for (const ParameterView& tensor : model.parameters) total += tensor.elements;
  const auto layers = layers_of(model);
  Drawing out;
  out.text(kLeft, 20, spec);
  out.text(kLeft, 20 + kLine,
           grouped(total) + " parameters in " + std::to_string(model.parameters.size()) +
               " tensors, version " + std::to_string(model.version),
           "faint");
  double y = 20 + 2 * kLine;
  for (std::size_t i = 0; i < std::min(layers.size(), kMostBoxes); ++i) {
    const Layer& layer = layers[i];
    const std::size_t shown = std::min(layer.tensors.size(), kMostTensors);
    const bool has_more = shown < layer.tensors.size();
    const double height = kLine * static_cast<double>(shown + (has_more ? 1 : 0) + 1) + 18;
    const std::uint64_t all = layer.elements * layer.count;
    if (i > 0) out.line(kLeft + kWidth / 2, y - 14, kLeft + kWidth / 2, y);
    out.box(kLeft, y, kWidth, height);
    out.text(kLeft + 8, y + kLine, layer.title());
    out.text(kLeft + kWidth - 150, y + kLine, grouped(all));
    double line = y + 2 * kLine;
    for (std::size_t t = 0; t < shown; ++t, line += kLine) {
      const auto& [name, shape] = layer.tensors[t];
      out.text(kLeft + 20, line, name.empty() ? layer.stem : name, "faint");
      out.text(kLeft + 280, line, shape_text(shape), "faint");
    }
    if (has_more)
      out.text(kLeft + 20, line, std::to_string(layer.tensors.size() - shown) + " more tensors",
               "faint");
    const double part = total > 0 ? static_cast<double>(all) / static_cast<double>(total) : 0;
    out.box(kLeft + 8, y + height - 10, kWidth - 16, 5, "rest");
    out.box(kLeft + 8, y + height - 10, (kWidth - 16) * part, 5, "part");
    y += height + 14;
  }
  if (layers.size() > kMostBoxes) {
    out.text(kLeft, y, std::to_string(layers.size() - kMostBoxes) + " more layers", "faint");
    y += kLine;
  }
  return out.document(kWidth + 2 * kLeft, y + 4, "Layers of model " + spec);
}

}  // namespace centroid::server
