#pragma once

#include <memory>
#include <string>

#include "common/base/result.h"
#include "transport/stream_layer.h"

namespace centroid::transport {

/// Files in PEM, by path; "": none.
struct TlsOptions {
  std::string certificate;  ///< of this process, followed by the intermediate ones
  std::string key;          ///< of `certificate`, not encrypted
  std::string authority;    ///< certificates that are trusted to sign the other side's, or "system"
                            ///< for those of this machine. A listener with one requires a
                            ///< certificate from its clients
  std::string server_name;  ///< in a server's certificate; "": the host connected to
  bool any_name = false;    ///< accept any certificate of the authority: between equals
  bool is_unchecked = false;  ///< connect without verification: a process that calls itself
  bool is_server = false;     ///< accepts connections: needs `certificate`
};

/// TLS 1.3 under the frames of a transport (TransportOptions::layer).
///
/// identity   a server always shows its certificate; with `authority` it requires the client's. The
///            handshake is part of the first read and write, so the deadline of the first frame
///            bounds it
/// renewal    changed files are read again before the next connection; if they are invalid then, a
///            warning names the reason and the old ones stay
/// thread     any
/// fails      invalid_argument, not_found, failed_precondition (key and certificate do not belong
///            together), each naming the file
/// source     RFC 8446; OpenSSL
Result<std::shared_ptr<StreamLayer>> make_tls(TlsOptions options);

/// Earliest expiry of the certificates in a PEM file, as Unix time.
/// fails  not_found, invalid_argument (no certificate in it)
Result<double> certificate_end(const std::string& path);

}  // namespace centroid::transport
