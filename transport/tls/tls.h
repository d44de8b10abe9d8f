#pragma once

#include <memory>
#include <string>

#include "common/base/result.h"
#include "transport/stream_layer.h"

namespace centroid::transport {

/// Files in PEM, by path; "" where there is none.
struct TlsOptions {
  std::string certificate;  ///< of this process, with the intermediate ones behind it
  std::string key;          ///< of `certificate`, not encrypted
  std::string authority;    ///< certificates of those whose word counts about the other side, or
                            ///< "system" for those this machine trusts. Who accepts connections and
                            ///< has one lets in nobody without a certificate
  std::string server_name;  ///< what a server's certificate must be for; "": the host connected to
  bool any_name = false;    ///< any certificate of the authority will do: between equals
  bool is_unchecked = false;  ///< connect to whatever there is: a process that looks at itself
  bool is_server = false;     ///< accepts connections: needs `certificate`
};

/// TLS 1.3 under the frames of a transport (TransportOptions::layer).
///
/// identity   a server always shows its certificate; with `authority` on its side it asks for the
///            client's. The handshake is part of the first read and write, so whoever waits for the
///            first frame bounds it with its deadline
/// renewal    files that changed are read again before the next connection; if they are not right
///            then, a warning says why and the old ones stay
/// thread     one executor at a time
/// fails      invalid_argument, not_found, failed_precondition (key and certificate do not belong
///            together), each naming the file
/// source     RFC 8446; OpenSSL
Result<std::shared_ptr<StreamLayer>> make_tls(TlsOptions options);

/// When the first of the certificates in a PEM file ends, as Unix time.
/// fails  not_found, invalid_argument (no certificate in it)
Result<double> certificate_end(const std::string& path);

}  // namespace centroid::transport
