#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/result.h"
#include "worker/data/data_source.h"

namespace centroid::worker {

/// Images of one IDX file, not owned.
struct IdxImages {
  std::uint64_t count = 0;
  std::uint32_t rows = 0;
  std::uint32_t columns = 0;
  Bytes pixels;  ///< [count, rows, columns], one byte each
};

/// Check and read the header of an image file ("idx3-ubyte", magic 0x00000803) or a label file
/// ("idx1-ubyte", 0x00000801).
///
/// wire    big-endian u32: magic, one size per dimension; then one byte per element
/// fails   data_loss: names `file`, the byte, what was expected and what was found;
///         failed_precondition: no samples
/// source  LeCun, Cortes, Burges, "The MNIST database", section "file formats"
Result<IdxImages> parse_idx_images(Bytes content, const std::string& file);
Result<Bytes> parse_idx_labels(Bytes content, const std::string& file);

/// Read MNIST, Fashion-MNIST or another set in the same four files (…-images-idx3-ubyte,
/// …-labels-idx1-ubyte; "train-" and "t10k-"; '.' for '-' before "idx" and a final ".gz" are
/// accepted). The split is that of the files.
///
/// fails  as above, and not_found naming the first missing file; data_loss also if the files do not
///        match each other
Result<DataSplit> load_idx(const std::string& folder);

}  // namespace centroid::worker
