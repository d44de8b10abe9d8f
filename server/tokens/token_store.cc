#include "server/tokens/token_store.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/storage/file.h"
#include "server/tokens/digest.h"
#include "server/tokens/file_lock.h"
#include "server/tokens/private_file.h"

namespace centroid::server {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxTokens = 1000, kMaxNameBytes = 64;
constexpr std::size_t kIdBytes = 8, kSecretBytes = 32, kSaltBytes = 16;
constexpr std::string_view kPrefix = "centroid_";

std::string hex(const unsigned char* bytes, std::size_t count) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

Result<std::string> random_hex(std::size_t count) {
  std::array<unsigned char, 64> bytes{};
  if (RAND_bytes(bytes.data(), static_cast<int>(count)) != 1)
    return Error(ErrorCode::kUnavailable, "the system gave no random numbers for a token");
  return hex(bytes.data(), count);
}

std::string digest(std::string_view salt, std::string_view secret) {
  return sha256(std::string(salt) + ":" + std::string(secret));
}

bool is_token(std::string_view text) {
  return text.starts_with(kPrefix) &&
         text.size() == kPrefix.size() + 2 * kIdBytes + 1 + 2 * kSecretBytes;
}

std::string_view id_of(std::string_view token) {
  return token.substr(kPrefix.size(), 2 * kIdBytes);
}

bool is_it(const TokenDigest& token, std::string_view secret, double now) {
  const std::string hash = digest(token.salt, secret);
  const bool is_same = hash.size() == token.hash.size() &&
                       CRYPTO_memcmp(hash.data(), token.hash.data(), hash.size()) == 0;
  const double end = token.expires_unix_seconds;
  return is_same && (end == 0 || now < end);
}

bool is_name(std::string_view name) {
  const auto is_right = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), is_right);
}

Error unreadable(const std::string& path, const Error& why) {
  return private_file_error("tokens " + path + ": cannot be read", why);
}

/// Changes when the file is replaced; 0: there is none.
Result<std::uint64_t> stamp_at(const std::string& path) {
  // A network file system asks its server when a file is opened; stat may answer of long ago.
  const auto file = file::open_regular(path);
  if (!file.ok() && file.error().code() == ErrorCode::kNotFound) return std::uint64_t{0};
  if (!file.ok()) return unreadable(path, file.error());
  const auto stamp = file::stamp_of(*file, path);
  if (!stamp.ok()) return unreadable(path, stamp.error());
  return *stamp;
}

/// One server at a time. fails aborted: it is another's turn
Result<std::optional<FileLock>> take_lock(const std::string& path) {
  if (path.empty()) return std::optional<FileLock>();
  const std::string file = path + ".lock";
  auto lock = FileLock::try_take(file);
  if (!lock.ok()) return std::move(lock).error().with_context("tokens");
  if (!*lock)
    return Error(ErrorCode::kAborted, "tokens " + path + ": another server holds " + file);
  return lock;
}

}  // namespace

std::string sha256(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> out{};
  unsigned size = 0;
  CENTROID_CHECK(EVP_Digest(text.data(), text.size(), out.data(), &size, EVP_sha256(), nullptr) ==
                 1);
  return hex(out.data(), size);
}

std::string_view to_string(Role role) {
  switch (role) {
    case Role::kAnyone:
      return "anyone";
    case Role::kViewer:
      return "viewer";
    case Role::kWorker:
      return "worker";
    case Role::kAdmin:
      return "admin";
  }
  return "anyone";
}

std::optional<Role> parse_role(std::string_view text) {
  for (const Role role : {Role::kViewer, Role::kWorker, Role::kAdmin})
    if (to_string(role) == text) return role;
  return std::nullopt;
}

struct TokenStore::Entry {
  TokenInfo info;
  std::string id, salt, hash;
  TokenDigest digest() const { return {id, salt, hash, info.expires_unix_seconds}; }
};

bool opens(std::span<const TokenDigest> tokens, std::string_view secret, double now) {
  if (!is_token(secret)) return false;
  for (const TokenDigest& token : tokens)
    if (token.id == id_of(secret)) return is_it(token, secret, now);
  return false;
}

TokenStore::TokenStore(std::string path, std::shared_ptr<const Clock> clock)
    : path_(std::move(path)), clock_(std::move(clock)) {}

TokenStore::~TokenStore() = default;

Result<std::unique_ptr<TokenStore>> TokenStore::open(std::string path,
                                                     std::shared_ptr<const Clock> clock) {
  std::unique_ptr<TokenStore> store(new TokenStore(std::move(path), std::move(clock)));
  CENTROID_TRY(store->reload());
  return store;
}

/// A file that is gone says nothing: the folder may be away.
Status TokenStore::reload() {
  if (path_.empty()) return {};
  CENTROID_ASSIGN(const std::uint64_t stamp, stamp_at(path_));
  if (stamp == 0 || stamp == stamp_) return {};
  CENTROID_ASSIGN(auto entries, read());
  const std::scoped_lock lock(mutex_);
  entries_ = std::move(entries);
  stamp_ = stamp;  // of a file that was replaced meanwhile: it is read again
  return {};
}

Status TokenStore::refresh() {
  const std::scoped_lock lock(file_mutex_);
  return reload();
}

Result<std::vector<TokenStore::Entry>> TokenStore::read() const {
  std::vector<Entry> entries;
  const auto about = file::attributes_of(path_);
  if (!about.ok()) return unreadable(path_, about.error());
  if (*about && ((*about)->mode & 077u) != 0)
    return Error(ErrorCode::kFailedPrecondition,
                 "tokens " + path_ + ": others may read or write it; chmod 600 " + path_);
  const auto text = file::read_text(path_);
  if (!text.ok()) return unreadable(path_, text.error());
  const Json json = Json::parse(*text, nullptr, false);
  const Error damaged(ErrorCode::kDataLoss,
                      "tokens " + path_ +
                          ": damaged; move it away and create the tokens anew (named tokens stop "
                          "working, api.token goes on)");
  if (!json.is_object() || !json.contains("tokens") || !json["tokens"].is_array()) return damaged;
  try {
    for (const Json& one : json["tokens"]) {
      Entry entry;
      entry.info.name = one.at("name");
      const auto role = parse_role(one.at("role").get<std::string>());
      if (!role) return damaged;
      entry.info.role = *role;
      entry.info.created_by = one.at("created_by");
      entry.info.created_unix_seconds = one.at("created_unix_seconds");
      entry.info.expires_unix_seconds = one.at("expires_unix_seconds");
      entry.id = one.at("id");
      entry.salt = one.at("salt");
      entry.hash = one.at("sha256");
      entries.push_back(std::move(entry));
    }
  } catch (const Json::exception&) {
    return damaged;
  }
  return entries;
}

/// With the lock: what everybody is to know from now on.
Status TokenStore::save(std::vector<Entry> entries) {
  Json list = Json::array();
  for (const Entry& entry : entries)
    list.push_back({{"name", entry.info.name},
                    {"role", to_string(entry.info.role)},
                    {"created_by", entry.info.created_by},
                    {"created_unix_seconds", entry.info.created_unix_seconds},
                    {"expires_unix_seconds", entry.info.expires_unix_seconds},
                    {"id", entry.id},
                    {"salt", entry.salt},
                    {"sha256", entry.hash}});
  Json json;
  json["tokens"] = std::move(list);
  if (!path_.empty()) {
    CENTROID_TRY(replace_private("tokens", path_, json.dump(1) + "\n", fault::Stem("tokens")));
    const auto stamp = stamp_at(path_);
    stamp_ = stamp.ok() ? *stamp : 0;  // 0: the file is read again
  }
  const std::scoped_lock lock(mutex_);
  entries_ = std::move(entries);
  return {};
}

Result<TokenStore::Created> TokenStore::create(const std::string& name, Role role,
                                               std::chrono::seconds lifetime,
                                               const std::string& created_by) {
  if (!is_name(name) || name == "local" || name == "anyone" || name.starts_with("api."))
    return Error(ErrorCode::kInvalidArgument,
                 "name: expected 1 to 64 letters, digits, '.', '-' and '_', not beginning with "
                 "'api.', got '" +
                     name + "'");
  CENTROID_ASSIGN(const std::string id, random_hex(kIdBytes));
  CENTROID_ASSIGN(const std::string random, random_hex(kSecretBytes));
  CENTROID_ASSIGN(const std::string salt, random_hex(kSaltBytes));
  const std::scoped_lock file(file_mutex_);
  CENTROID_ASSIGN(const auto lock, take_lock(path_));
  CENTROID_TRY(reload());
  const auto is_same = [&](const Entry& entry) { return entry.info.name == name; };
  const double now = clock_->unix_seconds();
  std::vector<Entry> entries = entries_;
  const auto old = std::find_if(entries.begin(), entries.end(), is_same);
  if (old != entries.end()) {
    const double end = old->info.expires_unix_seconds;
    if (end == 0 || end > now)
      return Error(ErrorCode::kAlreadyExists,
                   "there is a token '" + name + "': revoke it first, or choose another name");
    entries.erase(old);
  }
  if (entries.size() >= kMaxTokens)
    return Error(ErrorCode::kResourceExhausted,
                 "there are " + std::to_string(kMaxTokens) + " tokens: revoke some");
  Created out;
  out.secret = std::string(kPrefix) + id + "_" + random;
  out.info.name = name;
  out.info.role = role;
  out.info.created_by = created_by;
  out.info.created_unix_seconds = now;
  if (lifetime.count() > 0)
    out.info.expires_unix_seconds = now + static_cast<double>(lifetime.count());
  Entry entry;
  entry.info = out.info;
  entry.id = id;
  entry.salt = salt;
  entry.hash = digest(salt, out.secret);
  entries.push_back(std::move(entry));
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.info.name < b.info.name; });
  CENTROID_TRY(save(std::move(entries)));
  return out;
}

Status TokenStore::revoke(const std::string& name) {
  const std::scoped_lock file(file_mutex_);
  CENTROID_ASSIGN(const auto lock, take_lock(path_));
  CENTROID_TRY(reload());
  std::vector<Entry> entries = entries_;
  const auto removed =
      std::erase_if(entries, [&](const Entry& entry) { return entry.info.name == name; });
  if (removed == 0) return Error(ErrorCode::kNotFound, "there is no token '" + name + "'");
  return save(std::move(entries));
}

std::vector<TokenInfo> TokenStore::list() const {
  const std::scoped_lock lock(mutex_);
  std::vector<TokenInfo> out;
  for (const Entry& entry : entries_) out.push_back(entry.info);
  return out;
}

std::optional<TokenInfo> TokenStore::find(std::string_view secret) const {
  if (!is_token(secret)) return std::nullopt;
  const std::string_view id = id_of(secret);
  const std::scoped_lock lock(mutex_);
  for (const Entry& entry : entries_) {
    if (entry.id != id) continue;  // the id is no secret
    if (!is_it(entry.digest(), secret, clock_->unix_seconds())) return std::nullopt;
    return entry.info;
  }
  return std::nullopt;
}

std::vector<TokenDigest> TokenStore::digests(Role least) const {
  const std::scoped_lock lock(mutex_);
  std::vector<TokenDigest> out;
  for (const Entry& entry : entries_)
    if (entry.info.role >= least) out.push_back(entry.digest());
  return out;
}

}  // namespace centroid::server
