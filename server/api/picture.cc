#include "server/api/picture.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "common/base/trace_report.h"

namespace centroid::server {

namespace {

using trace::escaped;

constexpr std::size_t kMostBoxes = 64, kMostTensors = 24, kMostWorkers = 64, kMostServers = 16;
constexpr std::size_t kLongest = 60;  // characters of a name
constexpr double kLine = 16;

constexpr std::string_view kStyle =
    "<style>svg{color-scheme:light dark;color:#111;background:#fff;font:12px system-ui,sans-serif}"
    "text{fill:currentColor}.faint{opacity:.65}.box{fill:none;stroke:currentColor;"
    "stroke-opacity:.5}.link{stroke:currentColor;stroke-opacity:.4;fill:none}"
    ".part{fill:#3b82f6}.rest{fill:#8884}.good{fill:#22c55e}.bad{fill:#ef4444}.warn{fill:#f59e0b}"
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
  if (text.size() <= kLongest) return text;
  std::size_t at = 0;  // whole characters
  while (at < kLongest) at += std::max<std::size_t>(trace::utf8_length(text, at), 1);
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

/// How a tensor's name is cut: "blocks" "3" "attention.qkv.weight"; without a number "embedding" ""
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
  std::string stem, first, last;  // numbers, where there are some
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

const char* tone(const std::string& state) {
  if (state == "active" || state == "leader" || state == "serving" || state == "standby")
    return "good";
  return state == "dead" || state == "fenced" ? "bad" : "warn";
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

std::string cluster_picture(const ClusterView& cluster, std::span<const WorkerView> workers,
                            std::span<const ServerView> servers) {
  constexpr double kWidth = 200, kHeight = 92, kGap = 16, kColumns = 4;
  constexpr double kAll = kColumns * (kWidth + kGap) + kGap;
  Drawing out;
  const double middle = kAll / 2;
  out.box(middle - 150, 10, 300, kHeight);
  out.text(middle - 140, 28, "server " + cluster.run_id + ": " + cluster.state);
  out.text(middle - 140, 28 + kLine,
           "round " + std::to_string(cluster.round) + ", version " +
               std::to_string(cluster.version) + ", epoch " + std::to_string(cluster.epoch),
           "faint");
  out.text(middle - 140, 28 + 2 * kLine,
           cluster.exchange + " " + cluster.policy + " " + cluster.codec + ", generation " +
               std::to_string(cluster.generation),
           "faint");
  out.text(middle - 140, 28 + 3 * kLine,
           "loss " + number(cluster.loss, "%.4g") + ", " +
               number(cluster.samples_per_second, "%.4g") + " samples/s",
           "faint");
  std::vector<const ServerView*> shards;
  for (const ServerView& server : servers)
    if (server.state != "leader") shards.push_back(&server);
  double y = 10 + kHeight + kGap;
  const auto place = [&](std::size_t number_of) {
    const auto columns = static_cast<std::size_t>(kColumns);
    return std::pair(kGap + static_cast<double>(number_of % columns) * (kWidth + kGap),
                     y + 20 + static_cast<double>(number_of / columns) * (kHeight + kGap + 10));
  };
  const auto rows_of = [&](std::size_t count) {
    return static_cast<double>((count + 3) / 4) * (kHeight + kGap + 10) + (count > 0 ? 20 : 0);
  };
  const std::size_t shown_servers = std::min(shards.size(), kMostServers);
  for (std::size_t i = 0; i < shown_servers; ++i) {
    const ServerView& server = *shards[i];
    const auto [x, top] = place(i);
    out.line(middle, 10 + kHeight, x + kWidth / 2, top);
    out.box(x, top, kWidth, kHeight);
    out.box(x + kWidth - 16, top + 6, 10, 10, tone(server.state));
    const bool stands_by = server.state == "standby";
    out.text(x + 8, top + 18, (stands_by ? "server " : "shard server ") + server.name);
    out.text(x + 8, top + 18 + kLine, server.state, "faint");
    const std::string rest = "REST at " + server.api;
    const std::string share =
        grouped(server.chunks) + " chunks, " + grouped(server.bytes) + " bytes";
    out.text(x + 8, top + 18 + 2 * kLine, stands_by ? rest : share, "faint");
  }
  y += rows_of(shown_servers);
  std::vector<const WorkerView*> present;
  for (const WorkerView& worker : workers)
    if (worker.state != "left" && worker.state != "dead" && worker.state != "fenced")
      present.push_back(&worker);
  const std::size_t shown = std::min(present.size(), kMostWorkers);
  for (std::size_t i = 0; i < shown; ++i) {
    const WorkerView& worker = *present[i];
    const auto [x, top] = place(i);
    out.line(middle, 10 + kHeight, x + kWidth / 2, top);
    out.box(x, top, kWidth, kHeight);
    out.box(x + kWidth - 16, top + 6, 10, 10, tone(worker.state));
    out.text(x + 8, top + 18, worker.name);
    out.text(x + 8, top + 18 + kLine,
             worker.state + ", rank " +
                 (worker.rank < 0 ? std::string("none") : std::to_string(worker.rank)) + ", " +
                 std::to_string(worker.devices) + (worker.devices == 1 ? " device" : " devices"),
             "faint");
    out.text(x + 8, top + 18 + 2 * kLine,
             "step " + number(1000 * worker.step_seconds, "%.3g") + " ms, loss " +
                 number(worker.last_loss, "%.4g"),
             "faint");
    const double time = worker.compute_seconds + worker.wait_seconds;
    const double part = time > 0 ? worker.compute_seconds / time : 0;
    out.text(x + 8, top + 18 + 3 * kLine, "computes " + number(100 * part) + " % of its time",
             "faint");
    out.box(x + 8, top + kHeight - 12, kWidth - 16, 5, "rest");
    out.box(x + 8, top + kHeight - 12, (kWidth - 16) * part, 5, "part");
  }
  y += rows_of(shown);
  const std::size_t more = present.size() - shown + shards.size() - shown_servers;
  if (more > 0) out.text(kGap, y + kLine, std::to_string(more) + " more", "faint");
  return out.document(kAll, y + 2 * kLine, "Cluster of run " + cluster.run_id);
}

}  // namespace centroid::server
