#include "server/shard/reply_reader.h"

#include "common/optim/norm.h"

namespace centroid::server {

ReplyReader::ReplyReader(const Codec& codec, ParameterStore& store)
    : codec_(codec), store_(store), mean_(store.plan().max_chunk_elements()) {}

Result<double> ReplyReader::squares(const Chunk& chunk, Bytes payload) {
  PlaneNorm norm;
  CENTROID_ASSIGN(const auto sparse, codec_.sparse(payload, chunk.elements));
  if (sparse) {
    norm.add(chunk.position, sparse->index, sparse->value);
    return norm.end_chunk();
  }
  const std::span<float> mean = std::span(mean_).first(chunk.elements);
  CENTROID_TRY(codec_.decode(payload, mean));
  norm.add(chunk.position, mean);
  return norm.end_chunk();
}

Status ReplyReader::apply(const Chunk& chunk, Bytes payload) {
  if (store_.optimizer().ignores_zeros()) {
    CENTROID_ASSIGN(const auto sparse, codec_.sparse(payload, chunk.elements));
    if (sparse) {
      store_.shadow_apply(chunk, sparse->index, sparse->value);
      return {};
    }
  }
  const std::span<float> mean = std::span(mean_).first(chunk.elements);
  CENTROID_TRY(codec_.decode(payload, mean));
  store_.shadow_apply(chunk, mean);
  return {};
}

}  // namespace centroid::server
