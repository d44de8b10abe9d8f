// As common/async/asio.cc, for TLS.
#include <boost/asio/ssl/impl/src.hpp>
