#include "worker/data/text.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "common/base/random.h"
#include "worker/data/file.h"

namespace centroid::worker {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxCorpusBytes = std::size_t{1} << 30;
constexpr std::size_t kMaxVocabularyBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxTokenBytes = 64;
constexpr std::uint64_t kHeldOutOneIn = 10;

/// Replace the escapes \n, \t and \\. False for any other escape.
bool unescape(std::string_view line, std::string& out) {
  out.clear();
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      out.push_back(line[i]);
      continue;
    }
    const char next = ++i < line.size() ? line[i] : '?';
    if (next != 'n' && next != 't' && next != '\\') return false;
    out.push_back(next == 'n' ? '\n' : next == 't' ? '\t' : '\\');
  }
  return true;
}

/// Read the files of one place, in the order of their names.
Status read_place(const std::string& place, std::size_t& left,
                  std::vector<std::string>& documents) {
  std::error_code error;
  std::vector<fs::path> files;
  if (fs::is_directory(place, error)) {
    for (auto entry = fs::directory_iterator(place, error);
         !error && entry != fs::directory_iterator(); entry.increment(error)) {
      std::error_code ignored;
      if (entry->is_regular_file(ignored) && !entry->is_symlink(ignored))
        files.push_back(entry->path());
    }
    if (error)
      return Error(ErrorCode::kDataLoss, "folder " + place + " cannot be read: " + error.message());
    if (files.empty())
      return Error(ErrorCode::kFailedPrecondition, "folder " + place + " contains no files");
    std::ranges::sort(files);
  } else {
    files.emplace_back(place);
  }
  for (const fs::path& file : files) {
    auto document = read_file(file.string(), left, "name files or folders, as in text:FILE,DIR");
    if (!document.ok()) return std::move(document).error();
    left -= document->size();
    documents.push_back(std::move(document).value());
  }
  return {};
}

}  // namespace

Status Vocabulary::add(std::string_view lines, const std::string& file) {
  std::string token;
  for (std::uint64_t number = 1; !lines.empty(); ++number) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    const auto bad = [&](const std::string& what) {
      return Error(ErrorCode::kDataLoss, file + " line " + std::to_string(number) + ": " + what);
    };
    if (!unescape(line, token)) return bad("a \\ that is not part of \\n, \\t or \\\\");
    if (token.size() < 2 || token.size() > kMaxTokenBytes)
      return bad("a token of " + std::to_string(token.size()) + " bytes, expected 2 to " +
                 std::to_string(kMaxTokenBytes) + " (single bytes are tokens already)");
    longest_ = std::max(longest_, token.size());
    if (!longer_.emplace(token, size()).second) return bad("this token was there before");
  }
  return {};
}

void Vocabulary::encode(std::string_view text, std::vector<std::uint32_t>& out) const {
  std::string part;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = std::min(longest_, text.size() - at);
    std::uint32_t token = static_cast<unsigned char>(text[at]);
    for (; length > 1; --length) {
      part.assign(text.substr(at, length));
      const auto found = longer_.find(part);
      if (found == longer_.end()) continue;
      token = found->second;
      break;
    }
    out.push_back(token);
    at += std::max<std::size_t>(length, 1);
  }
}

Result<DataSplit> split_text(const std::vector<std::string>& documents,
                             const Vocabulary& vocabulary, std::uint64_t context,
                             std::uint64_t seed) {
  DataSplit split;
  for (Dataset* set : {&split.train, &split.test}) {
    set->features = context;
    set->classes = set->vocabulary = vocabulary.size();
    set->token_begin = {0};
  }
  std::uint64_t bytes = 0, number = 0, held_out = 0;
  std::vector<std::uint32_t> tokens;
  for (const std::string& document : documents) {
    bytes += document.size();
    tokens.clear();
    vocabulary.encode(document, tokens);
    for (std::size_t begin = 0; begin + 1 < tokens.size(); begin += context, ++number) {
      // One sample of every ten, so that held-out samples are spread evenly over the text.
      if (number % kHeldOutOneIn == 0)
        held_out = number + CounterRng(seed, number).below(kHeldOutOneIn);
      Dataset& set = number == held_out ? split.test : split.train;
      const std::size_t end = std::min<std::size_t>(tokens.size(), begin + context + 1);
      set.tokens.insert(set.tokens.end(), tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                        tokens.begin() + static_cast<std::ptrdiff_t>(end));
      set.token_begin.push_back(set.tokens.size());
      ++set.samples;
    }
  }
  if (split.train.samples == 0)
    return Error(ErrorCode::kFailedPrecondition,
                 "the text has " + std::to_string(bytes) +
                     " bytes: too few for a training sample of context " + std::to_string(context));
  split.train.name = "text: " + std::to_string(documents.size()) + " files, " +
                     std::to_string(bytes) + " bytes in windows of " + std::to_string(context) +
                     " tokens";
  split.test.name = split.train.name + ", held out";
  return split;
}

Result<DataSplit> load_text(const std::string& places, const std::string& vocabulary_file,
                            std::uint64_t context, std::uint64_t seed) {
  if (context == 0)
    return Error(ErrorCode::kInvalidArgument,
                 "data set text needs a model of tokens: set --model transformer:...");
  Vocabulary vocabulary;
  if (!vocabulary_file.empty()) {
    CENTROID_ASSIGN(const std::string lines,
                    read_file(vocabulary_file, kMaxVocabularyBytes,
                              "a vocabulary has one token a line (data_vocabulary)"));
    CENTROID_TRY(vocabulary.add(lines, vocabulary_file));
  }
  std::vector<std::string> documents;
  std::size_t left = kMaxCorpusBytes;
  std::string_view rest = places;
  for (bool is_more = true; is_more;) {
    const std::string place(rest.substr(0, rest.find(',')));
    is_more = place.size() < rest.size();
    rest.remove_prefix(place.size() + (is_more ? 1 : 0));
    CENTROID_TRY(read_place(place, left, documents));
  }
  return split_text(documents, vocabulary, context, seed);
}

Dataset as_tokens(const Dataset& dense, std::uint32_t levels) {
  Dataset out;
  out.name = dense.name + ", as tokens";
  out.samples = dense.samples;
  out.features = dense.features;
  out.classes = dense.classes;
  out.vocabulary = levels;
  out.y = dense.y;
  for (const float x : dense.x)
    out.tokens.push_back(static_cast<std::uint32_t>(
        std::lround(std::clamp(x, 0.0F, 1.0F) * static_cast<float>(levels - 1))));
  for (std::uint64_t i = 0; i <= dense.samples; ++i) out.token_begin.push_back(i * dense.features);
  return out;
}

}  // namespace centroid::worker
